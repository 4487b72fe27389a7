"""lambda for users' models, `convex-lambda=auto`: that of the least loss on held-out samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from corsage.core.arrays import Floats
from corsage.core.errors import ModelError
from corsage.solvers.convex_clustering.batched import Batched, Users, consensus
from corsage.solvers.convex_clustering.couplings import Clusters, Penalty
from corsage.solvers.convex_clustering.exact.edges import Edges
from corsage.solvers.convex_clustering.runs import Solved, Task
from corsage.solvers.losses.held_out import Fold, bounded

MODELS_GRID, LOWEST = 30, 1 / 50
"""Number of lambda to try; the least as a share of the largest."""
PATH_EXCHANGES = 6
"""Exchanges that a path takes at most."""
NO_LAMBDA = 1e-12
"""The largest lambda where users have one model already, or there is one user only."""
NO_GLOBAL_MODEL = 0.5
"""A relative gap of the global model that says that there is none."""

HOLD_OUT = Fold("models", 0, 0.3)


@dataclass(frozen=True)
class ModelChoice:
    """The lam of the least hold-out loss.

    Parameters
    ----------
    lam : it.
    lams, scores : what was tried, and the mean losses.
    start : the solution at lam without the samples held out.
    """

    lam: float
    lams: Floats
    scores: Floats
    start: Solved


def grid(users: Users, edges: Edges, fold: Fold, count: int) -> Floats:
    """lambda from consensus on down, without a fold; local models must have been asked for.

    A federation without a best model for all is refused here, before the path is begun.
    """
    together = Task(Clusters(np.zeros(users.n, np.int64)), fold)
    (found,) = users.solve([together], NO_GLOBAL_MODEL, PATH_EXCHANGES)
    if not found.gap <= NO_GLOBAL_MODEL:
        raise ModelError(
            "lambda=auto: all users' samples together have no best model (a plane separates their "
            "classes, or inputs are huge): set ridge=0.001, a number for lambda, or scale inputs."
        )
    if np.isnan(found.held).all():
        raise ModelError(
            "lambda=auto: no user has samples to hold out, nobody has more than one: set a number."
        )
    top = max(consensus(found, edges), NO_LAMBDA)
    return np.asarray(np.geomspace(top, LOWEST * top, count))


def choose_for_models(users: Users, edges: Edges, held: bool = False) -> ModelChoice:
    """The lam whose models, from 70% of each user's samples, lose the least on the other 30%.

    `held`: some user must have a best model of its own. Without one no gap closes, and models of
    several classes take minutes to find that out.
    """
    users.local([None, HOLD_OUT])
    if held and isinstance(users, Batched) and not users.found.any():
        raise ModelError(
            "convex-lambda=auto: no user has a best model of its own (planes separate the classes "
            "of each: few samples for so many numbers), so no lambda is certified: set "
            "ridge=0.001, or a number for lambda."
        )
    lams = grid(users, edges, HOLD_OUT, MODELS_GRID)
    tasks = [Task(Penalty(lam, edges), HOLD_OUT) for lam in lams.tolist()]
    found: Sequence[Solved] = users.solve(tasks, most=PATH_EXCHANGES)
    heard = bounded(np.stack([each.held for each in found]))
    scores = np.array([float(np.nanmean(losses)) for losses in heard])
    best = int(np.argmin(scores))
    return ModelChoice(float(lams[best]), lams, scores, found[best])
