"""A table in, a model for every user out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, Unpack

from corsage.app.given import data_of
from corsage.app.output.notebook import calm_log
from corsage.app.output.progress import is_tty
from corsage.app.simulation import Comparison, simulate
from corsage.core.configuration.config import AUTOMATIC
from corsage.core.configuration.keywords import Keywords
from corsage.core.errors import ConfigError
from corsage.core.registry import attached
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

    Linear models are compared on rows that are held out (by cross-validation where users have few
    rows) and then fitted to all rows: scores are of the comparison, all else is of the fit to all.
    With `test_fraction=0` nothing is compared. Networks are trained once, on all but test rows.

    Returns
    -------
    Comparison
        Printed, the answer in words and numbers. `fit(...).user("north").predict(rows)` is what the
        recommended row's model of a user says, `fit(...)["exact-local"]` another row.
    """
    if data is None and x is None:
        raise ConfigError("fit: give data, or x and y.")
    named = keys.pop("strategy", AUTOMATIC)
    given: Any = named
    listed = [given] if isinstance(given, str) or not isinstance(given, Sequence) else [*given]
    if not all(isinstance(name, str) for name in listed):
        return simulate(listed, data, x=x, y=y, user=user, label=label, cluster=cluster, **keys)
    progress, callbacks = bool(keys.pop("progress", True)), keys.pop("callbacks", ())
    with calm_log(watched=is_tty(sys.stderr)):
        columns = {"user": user, "label": label, "cluster": cluster}
        answer: Comparison = attached("answer").answer(
            listed, partial(data_of, data, (x, y), columns), keys, progress, callbacks, user
        )
    return answer
