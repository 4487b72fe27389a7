"""A table in, a model for every user out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from corsage.app.simulation import Comparison, simulate
from corsage.core.configuration.config import AUTOMATIC
from corsage.core.configuration.keywords import Keywords
from corsage.core.errors import ConfigError
from corsage.strategies.rounds.callbacks import Callback


class FitWords(Keywords, total=False):
    """Keys, whether a line of progress is shown, and what is called around every round."""

    progress: bool
    callbacks: Sequence[Callback]


def fit(
    data: Any = None,
    *,
    user: Any = None,
    label: str | None = None,
    cluster: Any = None,
    x: Any = None,
    y: Any = None,
    **keys: Unpack[FitWords],
) -> Comparison:
    """A model for every user of a table: `fit(frame, user="site", label="outcome")`.

    Parameters
    ----------
    data : a pandas frame, the path of a CSV or NPZ file, or anything else that `simulate` takes;
        or `x` and `y`, arrays.
    user, label, cluster : columns, or arrays; of data that are given user by user, `cluster` is
        `{user: cluster}`.
    **keys
        Keys with `_` for `-`, `progress` and `callbacks`. `strategy` is by default `"auto"`: those
        that suit the data, which a line says.

    Returns
    -------
    Comparison
        The same as `simulate` gives: `fit(...)["mixed-model"].user("north").predict(rows)`.
    """
    if data is None and x is None:
        raise ConfigError("fit: give data, or x and y.")
    named = keys.pop("strategy", AUTOMATIC)
    listed = [str(named)] if isinstance(named, str | float) else list(named)
    return simulate(listed, data, x=x, y=y, user=user, label=label, cluster=cluster, **keys)
