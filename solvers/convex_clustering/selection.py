"""lambda for users' models, `convex-lambda=auto`: that of the least loss on held-out samples.

For models of so many numbers that no Hessian is sent there is a rough path of few exchanges: from a
lambda at which nearly all users are one on down, a few rounds of `dr` each, begun where the one
before ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from corsage.core.arrays import Floats
from corsage.core.errors import ModelError
from corsage.solvers.convex_clustering.batched import Batched, Users, consensus
from corsage.solvers.convex_clustering.couplings import Clusters, Penalty
from corsage.solvers.convex_clustering.exact.edges import Edges, norms
from corsage.solvers.convex_clustering.halves import Facts
from corsage.solvers.convex_clustering.runs import Solved, Task
from corsage.solvers.convex_clustering.splitting import (
    DrState,
    Splitting,
    request,
    start_rho,
    update,
)
from corsage.solvers.losses.held_out import Fold, HeldOut, bounded

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


LESS_EACH_TIME, MOST_LAMBDAS, ROUNDS_EACH = 1 / 3, 8, 6
"""From a lambda to the next; how many; rounds at each."""
WORSE_IN_A_ROW = 2
"""Lambdas in a row that are worse than the best end the path."""


def best_lambda(users: HeldOut, edges: Edges, facts: Facts, d: int) -> float:
    """The lambda whose models, from 70% of each user's samples, lose the least on the other 30%.

    `facts` are of all samples.
    """
    n = edges.n
    losses = users.losses_without(HOLD_OUT)
    slope = losses.gradient(torch.zeros(n, d, dtype=losses.dtype)).numpy()
    pairs = 2 * float(edges.w.sum()) / max(n, 1)
    lam = max(2 * float(norms(slope - slope.mean(0)).max()) / (pairs + 1), np.finfo(float).tiny)
    start, held, lams = DrState.zeros(n, edges, d), list[Floats](), list[float]()
    state = Splitting(start.s, start.y, start.mu, 1.0)
    for _ in range(MOST_LAMBDAS):
        state = begun(state, start_rho(facts.curvature, facts.slope, lam * pairs))
        for _ in range(ROUNDS_EACH):
            everybody = np.arange(n)
            at = torch.from_numpy(request(state, everybody))
            x = losses.prox(at, state.rho).numpy()
            state = update(state, everybody, x, edges, lam, state.rho)
        held.append(users.evaluate(state.y, HOLD_OUT))
        lams.append(lam)
        scores = np.nanmean(bounded(np.stack(held)), axis=1)
        if len(lams) - 1 - int(scores.argmin()) >= WORSE_IN_A_ROW:
            break
        lam *= LESS_EACH_TIME
    return lams[int(scores.argmin())]


def begun(state: Splitting, rho: float) -> Splitting:
    """The same models, and as much of the pull on them as the next lambda can have."""
    pull = LESS_EACH_TIME * state.rho * (state.s - state.y)
    return replace(state, s=state.y + pull / rho, mu=LESS_EACH_TIME * state.mu, rho=rho)
