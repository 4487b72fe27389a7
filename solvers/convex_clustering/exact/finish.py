"""Ends of an iteration for the sum-of-norms problem: points are offered, and the best one is kept.

A point is models X and feasible duals mu, and how good it is the duality gap says. Where nearly
fused users suggest a partition, its reduced problem and a flow inside its clusters may give a point
that is exactly fused, and whose gap is only rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.solvers.convex_clustering.exact.certificate import Problem
from corsage.solvers.convex_clustering.exact.edge_functions import TINY
from corsage.solvers.convex_clustering.exact.edges import norms
from corsage.solvers.convex_clustering.exact.fusion import Reduced, flow, means, reduced

FLATTEST = 1e-3
"""The least curvature to reckon with, as a share of the f_i's largest: they may start out flat."""
CARRIED = 0.3
"""The share of the allowed gap that a flow inside clusters aims at."""
TOO_LARGE = 1e3
"""An estimated gap that is so many times too large is not computed."""
FLAT_SHARE = 1e-10
"""Curvature below this share of the largest counts as that."""
WORSE_BY = 1e-9
"""A partition whose models are worse than the present ones by that share is wrong."""
NEIGHBOURS_MET = 1e-9
"""Neighbours that are so close, as a share of the largest number, are one if that is as good."""
AGAIN = 0.03
"""A partition that failed is tried again when the edges' part of the gap is so much smaller."""


@dataclass(frozen=True)
class Found:
    """Models (n, d), duals (E, d), the gap between them, and how many Newton steps they took."""

    x: Floats
    mu: Floats
    gap: float
    steps: int


@dataclass
class Finish:
    """The points that were offered so far, and the best of them.

    Parameters
    ----------
    problem : costs, graph, lam.
    tolerance : the relative gap to end with.
    start : models to measure the costs' curvature at.
    best : the point with the least gap.
    """

    problem: Problem
    tolerance: float
    start: Floats
    best: Found | None = None
    _reduced: dict[bytes, Reduced | None] = field(default_factory=dict)
    _failed: dict[bytes, float] = field(default_factory=dict)

    @cached_property
    def curvature(self) -> float:
        """The mean curvature of the f_i, at the start."""
        costs = self.problem.costs
        mean = float(np.trace(costs.hessian(self.start), axis1=1, axis2=2).mean()) / costs.d
        return max(mean, FLATTEST * costs.smoothness(), TINY)

    def tries(self, labels: Ints, x: Floats, mu: Floats, spread: float) -> bool:
        """True if the partition's reduced problem and a flow inside its clusters close the gap.

        They begin at x and mu, whose edges' part of the gap is `spread`.
        """
        key = labels.tobytes()
        if spread > AGAIN * self._failed.get(key, np.inf):
            return False
        self._failed[key] = spread
        if key not in self._reduced:
            self._reduced[key] = reduced(self.problem, x, labels)
        found, here = self._reduced[key], self.problem.value(x)
        if found is None or self.problem.value(found.x) > here + WORSE_BY * abs(here):
            return False
        allowed, costs = self.tolerance * abs(here), self.problem.costs
        mu = flow(self.problem, found, mu, CARRIED * 2 * self.curvature * allowed)
        gradient = costs.gradient(found.x) + self.problem.edges.adjoint(mu)
        if slack(found.x, gradient, costs.hessian(found.x)) > TOO_LARGE * allowed:
            return False
        return self.offer(found.x, mu)

    def close(self, labels: Ints, x: Floats, mu: Floats) -> bool:
        """True if models fused by their means are good enough, or else those that are not fused."""
        return self.offer(means(x, labels)[labels], mu) or self.offer(x, mu)

    def offer(self, x: Floats, mu: Floats) -> bool:
        """Keep a point if it is the best so far; whether its gap is closed."""
        mu, gap = self.problem.certificate(x, mu)
        if self.best is None or gap < self.best.gap:
            self.best = Found(x, mu, gap, 0)
        return self.problem.relative(gap, x) <= self.tolerance

    def found(self, steps: int) -> Found:
        """The best point, after so many steps."""
        assert self.best is not None
        return Found(self.best.x, self.best.mu, self.best.gap, steps)


def met(problem: Problem, found: Found, tolerance: float) -> Found:
    """Neighbours that next to nothing keeps apart are one, where that is as good."""
    apart = norms(problem.edges.differences(found.x))
    near = apart <= NEIGHBOURS_MET * np.abs(found.x).max()
    if not apart[near].any():
        return found
    labels = problem.edges.components(near)
    x = means(found.x, labels)[labels]
    gap = problem.gap(x, found.mu)
    enough = max(tolerance, problem.relative(found.gap, found.x))
    return replace(found, x=x, gap=gap) if problem.relative(gap, x) <= enough else found


def slack(x: Floats, gradient: Floats, blocks: Floats) -> float:
    """About the users' part of the gap: 1/2 g_i' H_i^-1 g_i, with steps of at most 1 + |x_i|."""
    size = norms(gradient)
    flat = FLAT_SHARE * np.trace(blocks, axis1=1, axis2=2) + TINY
    least = np.maximum(size / (1 + norms(x)), flat)
    damped = blocks + least[:, None, None] * np.eye(x.shape[1])
    return float((gradient * np.linalg.solve(damped, gradient[..., None])[..., 0]).sum()) / 2
