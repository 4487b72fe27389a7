"""From nearly fused models to exactly fused ones: the reduced problem and the flow inside clusters.

For a partition of the users, problem (5) of Armacki et al. 2022 has one model w_k a cluster and is
smooth as long as these differ. Its solution solves the whole problem if the edges inside the
clusters can carry what is left of the gradients: duals with |mu_e| <= lam w_e and
sum_j mu_ij = -grad f_i(w_k), the flow test. Both are cheap, and exact where they succeed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from corsage.core.arrays import Bools, Floats, Ints
from corsage.solvers.convex_clustering.exact.certificate import Problem, feasible
from corsage.solvers.convex_clustering.exact.costs import Fused, Smooth
from corsage.solvers.convex_clustering.exact.descent import EPS, SHORT, Newton, Place
from corsage.solvers.convex_clustering.exact.edge_functions import TINY, Norms
from corsage.solvers.convex_clustering.exact.edges import Edges, norms

REDUCED_STEPS, SHORT_STEP, ALONE_STEPS = 12, 1e-3, 100
"""Newton steps for the reduced problem; shorter ones mean that clusters meet. Where no edge is left
between clusters nothing meets, and there are more steps for costs with kinks in their slopes."""
SWEEPS, SWEEP_SHARE = 30, 1.5
"""Sweeps for the flow, of which one is enough where the duals are inside of their balls; how much
of each is taken."""
GRADIENT_AIM, NEARLY = 1e-14, 1e3
"""The gradient to aim at, as a share of those of the users; and what is accepted, beyond it."""
MET_SHARE = 1e-13
"""Clusters that are so close, as a share of the largest distance, have met."""
HOPELESS_FLOW = 1e8
"""Distance from its goal at which a flow is given up at once."""
STALLED, LESS = 6, 0.5
"""In so many sweeps what is left must fall to that share at least, else the flow is given up."""
CLEAR = 3.0
"""A ratio of successive sizes of differences that may part fused edges from others."""


@dataclass(frozen=True)
class Reduced:
    """A solution of (5): x (n, d), equal inside clusters, and the duals across clusters.

    `certified`: it is one to the last digits.
    """

    labels: Ints
    x: Floats
    inside: Bools
    across: Floats
    certified: bool = True


def reduced(problem: Problem, x: Floats, labels: Ints) -> Reduced | None:
    """Solve (5) from the clusters' means; None where clusters meet, or Newton's method fails."""
    costs, edges, radius = problem.costs, problem.edges, problem.radius
    count = int(labels.max()) + 1
    own: Smooth = costs
    graph = edges
    if count < edges.n:
        own, graph = Fused(costs, labels), edges.merged(labels, count)
    pull = problem.lam * graph.w
    start = means(x, labels)
    apart = norms(graph.differences(start))
    if apart.min(initial=np.inf) <= MET_SHARE * apart.max(initial=0.0):
        return None
    tension = float(np.abs(costs.gradient(start[labels])).sum() + pull.sum())

    def enough(place: Place, gradient: Floats, blocks: Floats) -> bool:
        return float(np.abs(gradient).sum()) <= GRADIENT_AIM * tension

    method = Newton(own, graph, lambda z: Norms(z, pull))
    limits = (REDUCED_STEPS, SHORT_STEP) if len(graph) else (ALONE_STEPS, SHORT)
    done, _ = method.run(start, enough, *limits)
    slope = own.gradient(done.x) + graph.adjoint(done.term.slope)
    if not float(np.abs(slope).sum()) <= NEARLY * GRADIENT_AIM * tension:
        return None
    found = done.x[labels]
    inside = labels[edges.i] == labels[edges.j]
    across = np.where(inside[:, None], 0.0, Norms(edges.differences(found), radius).slope)
    return Reduced(labels, found, inside, across)


def means(x: Floats, labels: Ints) -> Floats:
    """The mean over each cluster, (K, d)."""
    total = np.stack([np.bincount(labels, column) for column in x.T], 1)
    return np.asarray(total / np.bincount(labels)[:, None])


def candidates(edges: Edges, z: Floats, fused: Bools) -> list[Ints]:
    """Partitions that nearly fused models suggest, the likeliest first.

    Differences on fused edges are nearly 0, so they are far below the others: the largest ratio
    of successive sizes is one border. Which edges are fused at present is the other; alone it
    splits clusters whose edges inside carry all they can.
    """
    size = norms(z)
    flags = edges.components(fused)
    if not fused.any() or fused.all():
        return [flags]
    ordered = np.sort(size)
    ordered = np.maximum(ordered, EPS * ordered[-1] + TINY)
    ratios = ordered[1:] / ordered[:-1]
    place = int(ratios.argmax())
    if ratios[place] < CLEAR:
        return [flags]
    return [edges.components(size <= ordered[place]), flags]


def flow(
    problem: Problem, found: Reduced, mu: Floats, goal: float, hopeless: float = HOPELESS_FLOW
) -> Floats:
    """Duals (E, d) for a solution of (5): near mu, in their balls, and nearly balanced.

    Both sets, the balls and the duals that balance the gradients, have projections. By turns they
    creep; Douglas and Rachford's reflections come to a point that is inside of the balls in a few
    sweeps, until sum |grad f_i + v_i|^2 is at most `goal`, or `hopeless` times as much, or stalls.
    """
    edges, radius = problem.edges, problem.radius
    inner = edges.masked(found.inside)
    room, y = radius[found.inside], mu.T.compress(found.inside, axis=1).T
    need = -(problem.costs.gradient(found.x) + edges.adjoint(found.across))
    best: list[float] = []
    for _ in range(SWEEPS):
        lack = need - inner.adjoint(y)
        lack -= means(lack, found.labels)[found.labels]  # no flow inside a cluster carries that
        balanced = y + inner.carry(lack, times=1)  # what is left is carried in the next sweep
        own = feasible(balanced, room)
        left = float(np.square(need - inner.adjoint(own)).sum())
        best.append(min([left, *best[-1:]]))
        stalls = len(best) > STALLED and best[-1] > LESS * best[-1 - STALLED]
        if left <= goal or left > hopeless * goal or stalls:
            break
        y = y + SWEEP_SHARE * (feasible(2 * balanced - y, room) - balanced)
    duals = found.across.T.copy()
    duals[:, found.inside] = own.T
    return duals.T
