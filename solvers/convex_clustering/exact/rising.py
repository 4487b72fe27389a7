"""Solutions of convex clustering for one lam after the other, from the smallest up.

Clusters hardly ever fall apart when lam grows. So each is one point for the next lam, and inside of
it duals go on as they did from the last lam but one to the last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from corsage.core.arrays import Bools, Floats
from corsage.solvers.convex_clustering.exact.certificate import Problem, feasible
from corsage.solvers.convex_clustering.exact.costs import PointCosts
from corsage.solvers.convex_clustering.exact.edges import Edges, norms
from corsage.solvers.convex_clustering.exact.finish import Finish, Found
from corsage.solvers.convex_clustering.exact.level import Level
from corsage.solvers.convex_clustering.exact.shrinking import by_clusters
from corsage.solvers.convex_clustering.exact.solved import Beginning, one_thread, solved


@dataclass(frozen=True)
class Stop:
    """A lam, its solution, the clusters as points, and the edges inside of them (E,)."""

    lam: float
    found: Found
    level: Level
    inside: Bools


@dataclass
class Rising:
    """The way up: `to` is called with one lam after the other.

    Parameters
    ----------
    costs, edges, tolerance : those of all problems.
    last, before : where the way has been; None at its beginning.
    """

    costs: PointCosts
    edges: Edges
    tolerance: float
    last: Stop | None = None
    before: Stop | None = None

    def to(self, lam: float) -> Found:
        """The solution for a lam that is larger than the last one."""
        problem = Problem(self.costs, self.edges, lam)
        with one_thread():
            found = self._up(problem, self.last) if self.last else None
            if found is None:
                found = solved(problem, Beginning.cold(problem), self.tolerance)
            apart = norms(self.edges.differences(found.x)) > 0
            level = Level.of(self.costs, self.edges, self.edges.components(~apart))
            self.last, self.before = Stop(lam, found, level, ~level.across), self.last
        return found

    def _up(self, problem: Problem, last: Stop) -> Found | None:
        """From the last solution."""
        finish = Finish(problem, self.tolerance, last.found.x)
        inside = feasible(self._expected(problem.lam, last), problem.radius)
        return by_clusters(finish, last.level, last.found.x, last.found.mu, inside)

    def _expected(self, lam: float, last: Stop) -> Floats:
        """The duals on a line through the last two; or grown as lam where there are none."""
        found, before = lam / last.lam * last.found.mu, self.before
        if before is not None:
            known, share = before.inside & last.inside, (lam - last.lam) / (last.lam - before.lam)
            line = last.found.mu + share * (last.found.mu - before.found.mu)
            found = np.where(known[:, None], line, found)
        return np.asarray(found, order="F")
