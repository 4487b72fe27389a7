"""lambda for models of so many numbers that no Hessian is sent: a rough path of few exchanges.

From a lambda at which nearly all users are one on down, a few rounds of `dr` each, begun where the
one before ended; the best models for samples that were held out say which it is.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from corsage.core.arrays import Floats
from corsage.solvers.convex_clustering.exact.edges import Edges, norms
from corsage.solvers.convex_clustering.halves import Facts
from corsage.solvers.convex_clustering.selection import HOLD_OUT
from corsage.solvers.convex_clustering.splitting import (
    DrState,
    Splitting,
    request,
    start_rho,
    update,
)
from corsage.solvers.losses.held_out import HeldOut, bounded

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
