"""The clusters of a solution, proved: the flow test of Armacki et al. 2022 for a partition.

A small gap says that P(X) is near the minimum, and not that the users of X's clusters are those of
the minimum's: near a lambda at which clusters meet or fall apart, many partitions are nearly as
good. One is the solution's if the reduced problem (5) has different models for its clusters, and
a flow on the edges inside them carries what is left of the gradients. Where models are equal,
clusters are joined; where the flow leaves something over, what is left says how they fall apart.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from corsage.core.arrays import Bools, Floats, Ints
from corsage.core.errors import ModelError
from corsage.solvers.convex_clustering.exact import fusion
from corsage.solvers.convex_clustering.exact.certificate import Problem
from corsage.solvers.convex_clustering.exact.costs import LossCosts, PointCosts
from corsage.solvers.convex_clustering.exact.edge_functions import TINY
from corsage.solvers.convex_clustering.exact.edges import Edges, norms
from corsage.solvers.convex_clustering.exact.fusion import Reduced
from corsage.solvers.convex_clustering.exact.merged import Merged
from corsage.solvers.convex_clustering.exact.sum_of_norms import (
    Solution,
    costs_of,
    fit,
    problem_of,
    prox,
)
from corsage.solvers.losses.convex import Losses

REDUCED_GAP = 1e-12
"""The relative gap to which (5) is solved: where clusters meet, a coarser one hides it."""
MET_AT, LEFT_OVER = 1e-11, 1e-7
"""Clusters' models nearer than that share of the largest are one: Newton's method on (5) ends with
gradients of 1e-14; the share of the largest gradient that a flow may leave over."""
PARTITIONS_TRIED = 8
"""Partitions that are tried, each made of what the last one's test said."""


def proved(losses: Losses | Floats, solution: Solution, weights: Edges | None = None) -> Solution:
    """The solution with the clusters that are proved; as it was, and not certified, if none are.

    Parameters
    ----------
    losses, weights : those that it is a solution for.
    """
    problem, unproved = (
        problem_of(costs_of(losses), solution.lam, weights),
        replace(solution, partition_certified=False),
    )
    if problem.lam == 0 or np.isinf(problem.lam) or not len(problem.edges):
        return replace(solution, partition_certified=solution.certified)
    try:
        found = _searched(problem, solution)
    except ModelError:  # no reduced problem or flow to that many digits
        return unproved
    if found is None:
        return unproved
    x, mu = found
    gap = problem.gap(x, mu)
    relative = problem.relative(gap, x)
    if not relative <= max(solution.relative_gap, REDUCED_GAP):
        return unproved
    return replace(
        solution, x=x, mu=mu, value=problem.value(x), gap=gap, relative_gap=relative,
        partition_certified=True,
    )  # fmt: skip


def passes(problem: Problem, labels: Ints, x: Floats) -> bool:
    """True if a partition is the solution's; x are models near it."""
    try:
        found = _solved(problem, labels, x)
        apart = _apart(problem, found) | found.inside
        return bool(apart.all()) and carried(problem, found)[1] is None
    except ModelError:  # no reduced problem or flow to that many digits
        return False


def _searched(problem: Problem, solution: Solution) -> tuple[Floats, Floats] | None:
    """The models (n, d) and duals (E, d) of the partition that passes."""
    edges, x = problem.edges, solution.x
    labels = edges.components(norms(edges.differences(x)) == 0)
    for _ in range(PARTITIONS_TRIED):
        found = _solved(problem, labels, x)
        joined = edges.components(found.inside | ~_apart(problem, found))
        if joined.max() < labels.max():
            labels, x = joined, found.x
            continue
        duals, rest = carried(problem, found, solution.mu)
        if rest is None:
            return found.x, duals
        apart = norms(edges.differences(rest)) > 0
        labels = edges.components(found.inside & ~apart)
        x = reduced(problem, labels).x  # halves of a cluster have no differences to begin with
    return None


def _apart(problem: Problem, found: Reduced) -> Bools:
    """Edges between models that differ."""
    far = norms(problem.edges.differences(found.x))
    return np.asarray(far > MET_AT * max(float(norms(found.x).max()), TINY))


def _solved(problem: Problem, labels: Ints, x: Floats) -> Reduced:
    """A solution of (5), to the last digits; x are models near it."""
    found = fusion.reduced(problem, x, labels) or reduced(problem, labels)
    if not found.certified:
        raise ModelError("the reduced problem is not solved to the last digits.")
    return found


def reduced(problem: Problem, labels: Ints) -> Reduced:
    """A solution of (5) from nothing, clusters that meet included."""
    costs, edges, count = problem.costs, problem.edges, int(labels.max()) + 1
    own: PointCosts | Merged
    if isinstance(costs, PointCosts):
        own = costs.fused(labels)
    else:
        assert isinstance(costs, LossCosts)
        own = Merged(costs.losses, labels)
    graph = edges.merged(labels, count)
    solved = fit(own, problem.lam, graph, tolerance=REDUCED_GAP)
    first, second = labels[edges.i], labels[edges.j]
    inside = first == second
    codes = np.minimum(first, second) * count + np.maximum(first, second)
    share = np.where(first < second, edges.w, -edges.w)[~inside]
    place = np.searchsorted(graph.codes, codes[~inside])
    across = np.zeros((len(edges), costs.d), order="F")
    across[~inside] = (share / graph.w[place])[:, None] * solved.mu[place]
    return Reduced(labels, solved.x[labels], inside, across, solved.certified)


def carried(
    problem: Problem, found: Reduced, mu: Floats | None = None
) -> tuple[Floats, Floats | None]:
    """Duals (E, d), near mu; and what they leave over (n, d), if it is too much.

    By sweeps over all clusters; for those that are left, exactly.
    """
    edges, costs = problem.edges, problem.costs
    slope = costs.gradient(found.x)
    force = max(float(norms(slope).max()), float(problem.radius.sum()) / edges.n, TINY)
    most = LEFT_OVER * force
    mu = np.zeros_like(found.across) if mu is None else mu
    mu = fusion.flow(problem, found, mu, most**2, np.inf)
    over = norms(slope + edges.adjoint(mu)) > most
    if not over.any():
        return mu, None
    rest = np.zeros_like(slope)
    for k in np.unique(found.labels[over]):
        members, at = np.flatnonzero(found.labels == k), found.inside & (found.labels[edges.i] == k)
        need = -(slope + edges.adjoint(found.across))[members]
        ends = np.searchsorted(members, np.stack([edges.i[at], edges.j[at]]))
        inner = Edges(ends[0], ends[1], edges.w[at], len(members))
        rest[members], mu[at] = prox(need - need.mean(0), problem.lam, inner)
    enough = float(norms(rest).max()) <= most
    return mu, None if enough else rest
