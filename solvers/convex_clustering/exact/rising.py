"""Solutions of convex clustering for one lam after the other, from the smallest up.

Clusters hardly ever fall apart when lam grows. So each is one point for the next lam.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from corsage.core.arrays import Floats
from corsage.solvers.convex_clustering.exact.certificate import Problem, feasible
from corsage.solvers.convex_clustering.exact.costs import PointCosts
from corsage.solvers.convex_clustering.exact.edges import Edges, norms
from corsage.solvers.convex_clustering.exact.finish import Finish, Found
from corsage.solvers.convex_clustering.exact.level import Level
from corsage.solvers.convex_clustering.exact.shrinking import by_clusters
from corsage.solvers.convex_clustering.exact.solved import Beginning, one_thread, solved


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
            self.level = Level.of(self.costs, self.edges, labels)
        return found

    def _up(self, problem: Problem, level: Level) -> Found | None:
        """From the last solution. Inside of clusters that stay what they are, duals grow."""
        inside = feasible(problem.lam / self.lam * self.mu, problem.radius)
        finish = Finish(problem, self.tolerance, self.x)
        return by_clusters(finish, level, self.x, self.mu, inside)
