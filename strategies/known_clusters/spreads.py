"""Parts of a mixed model that prediction intervals need: sigma^2, D, errors of the centres."""

from __future__ import annotations

from typing import Any

import numpy as np

from corsage.core.arrays import Floats
from corsage.strategies.known_clusters.mixed_state import MixedModelState

MOST_SPREAD_NUMBERS = 200_000
"""Numbers of all centres' covariances that a result keeps."""


def spreads(state: MixedModelState, noise: float | None, exact: bool) -> dict[str, Any] | None:
    """Covariances in the model's units; None where labels have no sigma^2, or these are too many.

    Returns
    -------
    dict
        `sigma2`; `users`, D by cluster, of "" where all have the same; `above`, of centres around
        the middle; `centres` and `middle`, how sure these are; `open`, directions of the middle
        that the data leave open; `alone`: nothing ties users.
    """
    if (
        noise is None
        or not exact
        or state.covariance.size > MOST_SPREAD_NUMBERS
        or not len(state.w)
    ):
        return None
    names, fit = state.clusters.known[: len(state.w)], state.estimates.covariance
    if fit.kinds:
        users = dict(zip(fit.names or [""], fit.users, strict=True))
        above = sum((own for level, own in fit.levels.items() if level != "users"), noise * 0.0)
    else:
        users = {name: noise * freedom(row) for name, row in zip(names, state.used, strict=True)}
        above = noise * freedom(state.lam[0])
    lists = {
        "users": {name: own.tolist() for name, own in users.items()},
        "above": np.broadcast_to(above, state.w.shape[1:] * 2).tolist(),
        "centres": dict(zip(names, (noise * state.covariance).tolist(), strict=True)),
        "middle": (noise * state.around).tolist(),
        "open": state.unknown.tolist(),
    }
    return {"sigma2": noise, "alone": not state.used.any(), **lists}


def freedom(tie: Floats) -> Floats:
    """D over sigma^2 of strengths by coordinate: 0 for what is tied without end; 0 for what is not
    tied at all, which `alone` and the centres' covariances say."""
    with np.errstate(divide="ignore"):
        return np.diag(np.where(tie > 0, 1 / tie, 0.0))
