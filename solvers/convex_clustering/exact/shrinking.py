"""Convex clustering on graphs of few edges: the interior-point method on fewer and fewer points.

Long before the gap is closed it shows which users are fused. From then on each such cluster is one
point, heavier, for which there are edges to other clusters only. The solution of this smaller
problem, with a flow inside the clusters, is one for all users, and is certified as such. Clusters
inside of which no flow is found are taken apart, and the smaller problem is solved again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from corsage.core.arrays import Bools, Floats, Ints
from corsage.solvers.convex_clustering.exact.certificate import Problem
from corsage.solvers.convex_clustering.exact.costs import PointCosts
from corsage.solvers.convex_clustering.exact.edges import Edges, norms
from corsage.solvers.convex_clustering.exact.finish import CARRIED, Finish, Found
from corsage.solvers.convex_clustering.exact.fusion import Reduced, flow, means
from corsage.solvers.convex_clustering.exact.interior import Interior, even
from corsage.solvers.convex_clustering.exact.newton_system import small
from corsage.solvers.convex_clustering.exact.ssnal import Solver


@dataclass(frozen=True)
class Level:
    """A partition, and how the users' edges lie between its clusters.

    Parameters
    ----------
    users : their costs.
    labels : the cluster of each user, (n,).
    costs, graph : of the clusters.
    across : the users' edges between two clusters, (E,).
    place, sign : for these the clusters' edge, and 1 or -1 if it goes the other way.
    share : their part of the weight of that edge.
    """

    users: PointCosts
    labels: Ints
    costs: PointCosts
    graph: Edges
    across: Bools
    place: Ints
    sign: Floats
    share: Floats

    @classmethod
    def of(cls, costs: PointCosts, edges: Edges, labels: Ints) -> Level:
        """That of a partition."""
        count = int(labels.max()) + 1
        i, j = labels[edges.i], labels[edges.j]
        across = i != j
        i, j, w = i[across], j[across], edges.w[across]
        codes, place = np.unique(np.minimum(i, j) * count + np.maximum(i, j), return_inverse=True)
        total = np.bincount(place, w, len(codes)).astype(np.float64, copy=False)
        graph = Edges(codes // count, codes % count, total, count)
        sign = np.where(i < j, 1.0, -1.0)
        return cls(costs, labels, costs.fused(labels), graph, across, place, sign, w / total[place])

    def gathered(self, mu: Floats) -> Floats:
        """Duals of the users' edges (E, d), added up for the clusters' edges."""
        own = self.sign * mu.T.compress(self.across, axis=1)
        sums = [np.bincount(self.place, column, len(self.graph)) for column in own]
        return np.asarray(np.stack(sums).T, np.float64)

    def spread(self, mu: Floats, inside: Floats) -> Floats:
        """Duals of the clusters' edges, on the users' edges by weight; those `inside` beside."""
        found = inside.T.copy()
        found[:, self.across] = self.sign * self.share * mu.T.take(self.place, axis=1)
        return found.T


TIMES = 4
"""Times that clusters are taken apart before all is begun anew."""
FLOW_GAP = 1e-10
"""The relative gap of the flow inside of a cluster that may fall apart."""
SHARE = 0.5
"""The share of the tolerance that the problem of clusters may use up."""


def shrinking(finish: Finish, costs: PointCosts, x: Floats, mu: Floats | None = None) -> Found:
    """The solution, from x (n, d) and duals (E, d) inside of their balls on."""
    method = Interior(finish.problem, finish, x, mu, shrinks=True)
    if method.run():
        return finish.found(method.steps)
    if method.merged is not None:
        level = Level.of(costs, finish.problem.edges, method.merged)
        found = by_clusters(finish, level, method.x, method.mu, method.mu)
        if found is not None:
            return Found(found.x, found.mu, found.gap, method.steps + found.steps)
        if method.run():
            return finish.found(method.steps)
    return Solver(finish.problem, method.x, method.mu, finish, warm=True).run([])


def by_clusters(
    finish: Finish, level: Level, x: Floats, mu: Floats, inside: Floats
) -> Found | None:
    """The solution by way of that for clusters; None if it is not certified.

    x, mu : where that one begins, for all users.
    inside : duals that are near those that are needed inside of clusters.
    """
    problem, steps = finish.problem, 0
    for _ in range(TIMES):
        if level.costs.n == problem.costs.n:
            break  # no fewer than there are users: that would be the same problem, without end
        less = Problem(level.costs, level.graph, problem.lam)
        own = of_clusters(less, level, means(x, level.labels), level.gathered(mu), finish.tolerance)
        steps += own.steps
        same = less.edges.components(norms(less.edges.differences(own.x)) == 0)
        labels, models = same[level.labels], own.x[level.labels]
        duals, lack = carried(finish, labels, models, level.spread(own.mu, inside))
        if finish.offer(models, duals):
            return finish.found(steps)
        if not lack.any():
            break
        duals, rest = taken_apart(finish, labels, models, duals, lack)
        if finish.offer(models, duals):
            return finish.found(steps)
        edges = problem.edges
        same = (labels[edges.i] == labels[edges.j]) & (norms(edges.differences(rest)) == 0)
        level = level.of(level.users, edges, edges.components(same))
        x, inside = x + rest / finish.curvature, duals
    return None


def of_clusters(less: Problem, level: Level, x: Floats, mu: Floats, tolerance: float) -> Found:
    """The solution for clusters."""
    if not len(less.edges):
        return Found(level.costs.a, mu, 0.0, 0)
    finish = Finish(less, SHARE * tolerance, x)
    if quick(less):
        return shrinking(finish, level.costs, x, mu)
    return Solver(less, x, mu, finish, warm=True).run([])


def quick(problem: Problem) -> bool:
    """True if the interior-point method's matrices are small, and its cones alike."""
    costs, edges = problem.costs, problem.edges
    return costs.d <= costs.n and even(problem) and small(edges, costs.d)


def taken_apart(
    finish: Finish, labels: Ints, x: Floats, mu: Floats, which: Bools
) -> tuple[Floats, Floats]:
    """Duals (E, d), and what the best flow inside of some clusters leaves over (n, d).

    It is the prox of what the flow must carry: where it is not the same, clusters fall apart.
    """
    problem, edges = finish.problem, finish.problem.edges
    inside, mu = labels[edges.i] == labels[edges.j], mu.copy(order="F")
    across = np.where(inside[:, None], 0.0, mu)
    need, rest = -(problem.costs.gradient(x) + edges.adjoint(across)), np.zeros_like(x)
    for k in np.flatnonzero(which):
        members, at = np.flatnonzero(labels == k), inside & (labels[edges.i] == k)
        ends = np.searchsorted(members, np.stack([edges.i[at], edges.j[at]]))
        inner = Edges(ends[0], ends[1], edges.w[at], len(members))
        s = need[members] - need[members].mean(0)
        best = flow_of(Problem(costs := PointCosts(s), inner, problem.lam), costs, mu[at])
        rest[members], mu[at] = best.x, best.mu
    return mu, rest


def flow_of(own: Problem, costs: PointCosts, mu: Floats) -> Found:
    """The best flow inside of a cluster, near mu, and what it leaves over."""
    mu = np.asfortranarray(mu)
    whole, x = own.edges.components(), costs.a - own.edges.adjoint(mu)
    finish = Finish(own, FLOW_GAP, costs.a)
    if not quick(own):
        return Solver(own, x, mu, finish, warm=True).run([whole])
    return finish.found(0) if finish.tries(whole, x, mu, np.inf) else shrinking(finish, costs, x)


def carried(finish: Finish, labels: Ints, x: Floats, mu: Floats) -> tuple[Floats, Bools]:
    """Duals (E, d) for models of clusters, near mu; inside of which clusters there are none."""
    problem = finish.problem
    inside = labels[problem.edges.i] == labels[problem.edges.j]
    across = np.where(inside[:, None], 0.0, mu)
    allowed = 2 * finish.curvature * finish.tolerance * abs(problem.value(x))
    duals = flow(problem, Reduced(labels, x, inside, across), mu, CARRIED * allowed, np.inf)
    lack = problem.costs.gradient(x) + problem.edges.adjoint(duals)
    missing = np.bincount(labels, np.square(lack).sum(1))
    return duals, missing > CARRIED * allowed / len(missing)
