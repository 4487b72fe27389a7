"""Directions in which no loss of the federation grows: then the problem has no solution.

P(X) has no minimiser if there is a direction in which it falls for ever. With lambda > 0 that can
only be one u for all users of a connected piece of the graph, as the penalty grows where they
differ, and along it no user's loss may grow. So a piece in which one user's loss grows in all
directions has a solution. In others the users' losses are added up: their
best model is looked for, and if their sum still falls far beyond it, where they hardly curve, there
is no solution.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from corsage.core.arrays import Bools, Floats, Ints
from corsage.solvers.convex_clustering.batched import Batched
from corsage.solvers.convex_clustering.couplings import Clusters
from corsage.solvers.convex_clustering.expansions import Expansion
from corsage.solvers.convex_clustering.runs import Solved, Task

MOST_EXCHANGES = 12
"""Exchanges in which a piece's best model is looked for."""
FOUND_GAP = 1e-4
"""The relative gap at which it is found: nothing falls any more."""
TIMES_OUT = (1.0, 10.0, 100.0)
"""Distances at which it is looked whether the losses still fall, all in one exchange."""
STEPS_OUT = 5.0
"""So many of Newton's steps are far."""
FALL_ROUNDING, LEAST_CURVATURE = 1e-9, 1e-300
HARDLY_CURVED = 1e-2
"""Directions in which the losses curve less than this share of the most."""


def falling(users: Batched, pieces: Ints, doubtful: Sequence[int]) -> Bools:
    """For each piece whether its users' losses fall for ever."""
    users.local([None])
    (found,) = users.solve([Task(Clusters(pieces))], FOUND_GAP, MOST_EXCHANGES)
    falls = np.zeros(int(pieces.max()) + 1, bool)
    open_ = [k for k in doubtful if not settled(found, pieces == k)]
    if not open_:
        return falls
    zero = np.zeros_like(found.x)
    (here,) = users.at([(found.x, zero)])
    points = [found.x.copy() for _ in TIMES_OUT]
    for k in open_:
        own = pieces == k
        along = outwards(here, own, found.x[own][0])
        for times, point in zip(TIMES_OUT, points, strict=True):
            point[own] += times * along
    far = users.at([(point, zero) for point in points])
    for k in open_:
        own = pieces == k
        least = min(float(each.at_x[own].sum()) for each in far)
        falls[k] = least < float(here.at_x[own].sum()) * (1 - FALL_ROUNDING)
    return falls


def settled(found: Solved, own: Bools) -> bool:
    """True if a piece's model is known to be its best."""
    assert found.slack is not None and found.base is not None
    size = max(float(np.abs(found.base.at_x[own]).sum()), np.finfo(np.float64).tiny)
    return bool(found.slack[own].sum() <= FOUND_GAP * size)


def outwards(here: Expansion, own: Bools, model: Floats) -> Floats:
    """Far out, where a piece's losses hardly curve: as far as its model, and some steps at least.

    Where there is a best model nearby, a function that is convex has risen so many of Newton's
    steps away; where it only falls, these steps have an end nowhere.
    """
    values, vectors = np.linalg.eigh(here.hessian[own].sum(0))
    top = max(float(values[-1]), np.finfo(np.float64).tiny)
    flat, bent = (
        vectors[:, values <= HARDLY_CURVED * top],
        np.maximum(values[values <= HARDLY_CURVED * top], LEAST_CURVATURE),
    )
    along = flat @ (flat.T @ model)
    if not along.any():
        return model
    step = flat @ (flat.T @ here.gradient[own].sum(0) / bent)
    least = STEPS_OUT * float(np.linalg.norm(step)) / float(np.linalg.norm(along))
    return np.asarray(along * max(1.0, least if np.isfinite(least) else 1.0))
