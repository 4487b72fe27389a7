"""Solutions of convex clustering for one lam after the other, from the smallest up.

Clusters hardly ever fall apart when lam grows. So each is one point, heavier, for which there are
edges to other clusters only: the problem shrinks on the way. Its solution, with a flow inside the
clusters, is one for all users, and is certified as such. Clusters inside of which no flow is found
are taken apart, and the problem is solved again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from corsage.core.arrays import Bools, Floats, Ints
from corsage.solvers.convex_clustering.certificate import Problem, feasible
from corsage.solvers.convex_clustering.costs import PointCosts
from corsage.solvers.convex_clustering.edges import Edges, norms
from corsage.solvers.convex_clustering.finish import CARRIED, Finish, Found
from corsage.solvers.convex_clustering.fusion import Reduced, flow, means
from corsage.solvers.convex_clustering.interior import Interior, even
from corsage.solvers.convex_clustering.newton_system import small
from corsage.solvers.convex_clustering.solved import Beginning, one_thread, solved

TIMES = 4
"""How often clusters are taken apart before all is begun anew."""
SHARE = 0.5
"""The share of the tolerance that the problem of clusters may use up."""


@dataclass(frozen=True)
class Level:
    """Clusters as points, and how the users' edges lie between them.

    Parameters
    ----------
    labels : the cluster of each user, (n,).
    costs, graph : of the clusters.
    across : the users' edges between two clusters, (E,).
    place, sign : for these the clusters' edge, and 1 or -1 if it goes the other way.
    share : their part of the weight of that edge.
    """

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
        return cls(labels, costs.fused(labels), graph, across, place, sign, w / total[place])

    def gathered(self, mu: Floats) -> Floats:
        """Duals of the users' edges (E, d), added up for the clusters' edges."""
        own = self.sign[:, None] * mu[self.across]
        columns = [np.bincount(self.place, column, len(self.graph)) for column in own.T]
        return np.asarray(np.stack(columns, 1))

    def spread(self, mu: Floats, inside: Floats) -> Floats:
        """Duals of the clusters' edges, on the users' edges by weight; those `inside` beside."""
        found = inside.copy()
        found[self.across] = (self.sign * self.share)[:, None] * mu[self.place]
        return found


@dataclass
class Rising:
    """The way up: `to` is called with one lam after the other.

    Parameters
    ----------
    costs, edges, tolerance : those of all problems.
    lam, x, mu, level : the last lam, its models, duals and clusters; None before the first.
    """

    costs: PointCosts
    edges: Edges
    tolerance: float
    lam: float = 0.0
    x: Floats = field(init=False)
    mu: Floats = field(init=False)
    level: Level | None = None

    def to(self, lam: float) -> Found:
        """The solution for a lam that is larger than the last one."""
        problem = Problem(self.costs, self.edges, lam)
        with one_thread():
            found = self._up(problem, self.level) if self.level else None
            if found is None:
                found = solved(problem, Beginning.cold(problem), self.tolerance)
            labels = self.edges.components(norms(self.edges.differences(found.x)) == 0)
            self.lam, self.x, self.mu = lam, found.x, found.mu
            self.level = self._level(labels)
        return found

    def _level(self, labels: Ints) -> Level:
        return Level.of(self.costs, self.edges, labels)

    def _up(self, problem: Problem, level: Level) -> Found | None:
        """From the last solution; None if that does not lead to a certificate."""
        finish, steps = Finish(problem, self.tolerance, self.x), 0
        for _ in range(TIMES):
            own = self._clusters(Problem(level.costs, level.graph, problem.lam), level)
            steps += own.steps
            same = level.graph.components(norms(level.graph.differences(own.x)) == 0)
            labels, x = same[level.labels], own.x[level.labels]
            mu, lack = self._carried(finish, level, labels, x, own.mu)
            if finish.offer(x, mu):
                return finish.found(steps)
            if not lack.any():
                break
            level = self._level(apart(labels, lack))
        return None

    def _clusters(self, less: Problem, level: Level) -> Found:
        """The solution for the clusters, begun at the last one's."""
        tolerance = SHARE * self.tolerance
        if not len(less.edges):
            return Found(level.costs.a, np.zeros((0, less.costs.d)), 0.0, 0)
        if less.costs.d <= less.costs.n and even(less) and small(less.edges, less.costs.d):
            begin = means(self.x, level.labels)
            finish = Finish(less, tolerance, begin)
            method = Interior(less, finish, begin, level.gathered(self.mu))
            if method.run():
                return finish.found(method.steps)
        return solved(less, Beginning.cold(less), tolerance)

    def _carried(
        self, finish: Finish, level: Level, labels: Ints, x: Floats, own: Floats
    ) -> tuple[Floats, Bools]:
        """Duals (E, d) that go with the clusters' ones; inside of which clusters there are none."""
        problem, edges = finish.problem, self.edges
        longer = problem.lam / self.lam  # so inside of clusters that stay what they are
        mu = level.spread(own, feasible(longer * self.mu, problem.radius))
        inside = labels[edges.i] == labels[edges.j]
        across = np.where(inside[:, None], 0.0, mu)
        allowed = 2 * finish.curvature * self.tolerance * abs(problem.value(x))
        mu = flow(problem, Reduced(labels, x, inside, across), mu, CARRIED * allowed)
        lack = problem.costs.gradient(x) + edges.adjoint(mu)
        missing = np.bincount(labels, np.square(lack).sum(1))
        return mu, missing > CARRIED * allowed / len(missing)


def apart(labels: Ints, which: Bools) -> Ints:
    """The users of some clusters alone, those of all others together."""
    alone = which[labels]
    found = np.where(alone, len(which) + np.arange(len(labels)), labels)
    return np.asarray(np.unique(found, return_inverse=True)[1], np.int64)
