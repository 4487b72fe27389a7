"""Choice of the method for a sum-of-norms problem: the interior-point method, or SSNAL.

On a graph of few edges, whose matrices have sparse factors, the interior-point method takes ten to
twenty steps, whatever lam. Among all pairs, where a step is dear, SSNAL takes cheaper ones, and
begins at a similar problem's solution. It also goes on where the other one got stuck.

On a path from the smallest lam up (`Rising`) clusters hardly ever fall apart. So each is one point
for the next lam, and inside of it duals go on as they did from the last lam but one to the last.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache

import numpy as np
from threadpoolctl import ThreadpoolController

from corsage.core.arrays import Bools, Floats, Ints
from corsage.solvers.convex_clustering.exact.certificate import Problem, feasible
from corsage.solvers.convex_clustering.exact.costs import PointCosts
from corsage.solvers.convex_clustering.exact.edges import Edges, norms
from corsage.solvers.convex_clustering.exact.finish import Finish, Found
from corsage.solvers.convex_clustering.exact.interior import Interior, suits
from corsage.solvers.convex_clustering.exact.shrinking import Level, by_clusters, shrinking
from corsage.solvers.convex_clustering.exact.ssnal import Solver

FEW_CLUSTERS = 300
"""Clusters up to which a partition is tried before the interior-point method."""


@dataclass(frozen=True)
class Beginning:
    """Models (n, d) and feasible duals (E, d) to begin at, and partitions to try first.

    `warm`: they are those of a similar problem.
    """

    x: Floats
    mu: Floats
    guesses: list[Ints]
    warm: bool = False

    @classmethod
    def cold(cls, problem: Problem) -> Beginning:
        """At nothing: x = 0, mu = 0; all users of a piece may be one cluster."""
        zero = np.zeros((problem.costs.n, problem.costs.d))
        return cls(zero, problem.edges.differences(zero), [problem.edges.components()])


def solved(problem: Problem, begin: Beginning, tolerance: float) -> Found:
    """The solution, to that relative gap if it can be reached.

    On one thread: for matrices of this size more of them only wait for each other.
    """
    with one_thread():
        costs = problem.costs
        if isinstance(costs, PointCosts) and costs.d > costs.n:
            return _turned(problem, costs, begin, tolerance)
        return _solved(problem, begin, tolerance)


def _turned(problem: Problem, costs: PointCosts, begin: Beginning, tolerance: float) -> Found:
    """In the space that the points span about their mean: all models lie in it."""
    mean = costs.a.mean(0)
    basis, inner = np.linalg.qr((costs.a - mean).T)
    inside = PointCosts(np.ascontiguousarray(inner.T), costs.m)
    less = Problem(inside, problem.edges, problem.lam)
    x, mu = (begin.x - mean) @ basis, feasible(begin.mu @ basis, problem.radius)
    found = _solved(less, Beginning(x, mu, begin.guesses, begin.warm), tolerance)
    own, which = np.unique(found.x, axis=0, return_inverse=True)  # equal rows stay equal
    x = (mean + own @ basis.T)[which.ravel()]
    mu = feasible(np.asfortranarray(found.mu @ basis.T), problem.radius)
    return Found(x, mu, problem.gap(x, mu), found.steps)


def _solved(problem: Problem, begin: Beginning, tolerance: float) -> Found:
    """In all dimensions."""
    finish = Finish(problem, tolerance, begin.x)
    if not suits(problem):
        return Solver(problem, begin.x, begin.mu, finish, begin.warm).run(begin.guesses)
    for labels in begin.guesses:
        few = labels.max() < FEW_CLUSTERS
        if few and finish.tries(labels, begin.x, begin.mu, np.inf):
            return finish.found(0)
    if isinstance(problem.costs, PointCosts):
        return shrinking(finish, problem.costs, problem.costs.minimise())
    alone = problem.costs.minimise()
    method = Interior(problem, finish, np.where(np.isfinite(alone), alone, 0.0))
    if method.run():
        return finish.found(method.steps)
    return Solver(problem, method.x, method.mu, finish, warm=True).run([])


def one_thread() -> AbstractContextManager[object]:
    """Linear algebra on one thread."""
    limited: AbstractContextManager[object] = _libraries().limit(limits=1, user_api="blas")
    return limited


@cache
def _libraries() -> ThreadpoolController:
    """The linear algebra that is loaded; looking for it takes 10 ms."""
    return ThreadpoolController()


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
