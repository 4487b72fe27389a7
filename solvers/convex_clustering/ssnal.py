"""Semismooth Newton augmented Lagrangian (Sun, Toh, Yuan 2021) for the sum-of-norms problem.

With z = B x and duals mu, |mu_e| <= r_e = lam w_e, a step of the method of multipliers minimises
sum f_i(x_i) + the Moreau envelope of r_e |z_e| at mu_e, sigma, and its slopes are the next duals:
mu_e+ = projection of mu_e + sigma z_e onto the ball of radius r_e. Newton's method finds the
minimum; an edge whose projection is the point itself is fused. As soon as the fused edges suggest a
partition twice, its reduced problem is solved: if the duality gap closes, that is the solution,
exactly fused. So sigma hardly ever gets large.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property

import numpy as np
from threadpoolctl import ThreadpoolController

from corsage.core.arrays import Floats, Ints
from corsage.solvers.convex_clustering.certificate import Problem, edge_terms
from corsage.solvers.convex_clustering.descent import Newton, Place
from corsage.solvers.convex_clustering.edge_functions import TINY, Envelope
from corsage.solvers.convex_clustering.edges import norms
from corsage.solvers.convex_clustering.fusion import Reduced, candidates, flow, means, reduced

SIGMA, WARM = 1.0, 30.0
"""The first sigma, as a multiple of curvature/degree, from nothing and from known duals."""
GROWTH, FAST, EASY = 3.0, 8.0, 4
"""By how much sigma grows, and after at most so many Newton steps."""
INNER = 0.1
"""What the users' part of the gap may be of the edges' part after the inner iteration."""
OUTER, NEWTON = 60, 30
"""Limits of outer iterations and of Newton steps in one."""
FLATTEST = 1e-3
"""The least curvature to reckon with, as a share of the f_i's largest: they may start out flat."""
CARRIED = 0.03
"""The share of the allowed gap that a flow inside clusters aims at."""
SMALL, EARLY = 500, 1e-3
"""Clusters and relative gap up to which a partition is tried before the gap is closed."""
FAR = 1e3
"""An estimated gap that is so many times too large is not computed."""
SHARP = 1e-13
"""The gradient that is only rounding, as a share of what pulls at a user."""
MORE = 4
"""Outer iterations with the gap closed in which models that are fused exactly are looked for."""
FLAT = 1e-10
"""Curvature below this share of the largest counts as that."""
SLACK = 1e-9
"""A partition whose models are worse than the present ones by that share is wrong."""
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
class Solver:
    """The iteration, from x (n, d) and feasible duals mu (E, d), until the gap is closed.

    Parameters
    ----------
    problem : costs, graph, lam.
    x, mu : where it is.
    tolerance : the relative gap to end with.
    warm : whether mu are duals of a similar problem.
    sharp : gradients must vanish but for rounding. A user whose f_i grows in one direction only has
        a minimum with v_i = -grad f_i, but with no v_i a little off to the wrong side.
    """

    problem: Problem
    x: Floats
    mu: Floats
    tolerance: float
    warm: bool = False
    steps: int = 0
    sharp: bool = False
    best: Found | None = None
    _reduced: dict[bytes, Reduced | None] = field(default_factory=dict)
    _failed: dict[bytes, float] = field(default_factory=dict)

    def run(self, guesses: list[Ints]) -> Found:
        """The solution; partitions that may be the solution's are tried first.

        On one thread: for matrices of this size more of them only wait for each other.
        """
        with _libraries().limit(limits=1, user_api="blas"):
            return self._run(guesses)

    def _run(self, guesses: list[Ints]) -> Found:
        for labels in guesses:
            if self._try(labels, np.inf):
                return self._best()
        problem, last, left = self.problem, set[bytes](), MORE
        sigma = WARM if self.warm else SIGMA
        sigma *= self._curvature / float(problem.edges.degrees.mean())
        for _ in range(OUTER):
            term, steps, spread = self._inner(sigma)
            relative = problem.relative(spread, self.x)
            closed = relative <= self.tolerance
            guesses = candidates(problem.edges, term.z, term.fused)
            for place, labels in enumerate(guesses):
                small = labels.max() < SMALL and relative < EARLY
                settled = small and labels.tobytes() in last
                ripe = closed and (small or not place)
                if (ripe or settled) and self._try(labels, spread):
                    return self._best()
            if closed:
                left -= self._averaged(guesses[0]) or self._offer(self.x, self.mu)
                self.sharp |= not np.isfinite(self._best().gap)
                if left == 0:
                    return self._best()
            last = {labels.tobytes() for labels in guesses}
            sigma *= FAST if steps <= EASY else GROWTH
        self._offer(self.x, self.mu)
        return self._best()

    @cached_property
    def _curvature(self) -> float:
        """The mean curvature of the f_i, at the start."""
        costs = self.problem.costs
        mean = float(np.trace(costs.hessian(self.x), axis1=1, axis2=2).mean()) / costs.d
        return max(mean, FLATTEST * costs.smoothness(), TINY)

    def _inner(self, sigma: float) -> tuple[Envelope, int, float]:
        """One step of the method of multipliers; the edges' part of the gap after it."""
        mu, radius = self.mu, self.problem.radius
        size = self.problem.value(self.x)
        least = self.tolerance * abs(size) / 10

        def envelope(z: Floats) -> Envelope:
            return Envelope(z, mu, radius, sigma)

        def enough(place: Place, gradient: Floats, blocks: Floats) -> bool:
            if self.sharp:
                return float(np.abs(gradient).max()) <= SHARP * float(radius.sum()) / len(self.x)
            edges = float(edge_terms(place.z, place.term.slope, radius).sum())
            return slack(place.x, gradient, blocks) <= INNER * max(edges, least)

        method = Newton(self.problem.costs, self.problem.edges, envelope)
        done, steps = method.run(self.x, enough, NEWTON)
        self.x, self.mu, self.steps = done.x, done.term.slope, self.steps + steps
        return envelope(done.z), steps, float(edge_terms(done.z, self.mu, radius).sum())

    def _try(self, labels: Ints, spread: float) -> bool:
        """Whether the partition's reduced problem and a flow inside its clusters close the gap."""
        key = labels.tobytes()
        if spread > AGAIN * self._failed.get(key, np.inf):
            return False
        self._failed[key] = spread
        if key not in self._reduced:
            self._reduced[key] = reduced(self.problem, self.x, labels)
        found, here = self._reduced[key], self.problem.value(self.x)
        if found is None or self.problem.value(found.x) > here + SLACK * abs(here):
            return False
        allowed, costs = self.tolerance * abs(here), self.problem.costs
        mu = flow(self.problem, found, self.mu, CARRIED * 2 * self._curvature * allowed)
        gradient = costs.gradient(found.x) + self.problem.edges.adjoint(mu)
        if slack(found.x, gradient, costs.hessian(found.x)) > FAR * allowed:
            return False
        return self._offer(found.x, mu)

    def _averaged(self, labels: Ints) -> bool:
        """Whether models fused by their means are good enough."""
        return self._offer(means(self.x, labels)[labels], self.mu)

    def _offer(self, x: Floats, mu: Floats) -> bool:
        """Keep a point if it is the best so far; whether its gap is closed."""
        mu, gap = self.problem.certificate(x, mu)
        if self.best is None or gap < self.best.gap:
            self.best = Found(x, mu, gap, self.steps)
        return self.problem.relative(gap, x) <= self.tolerance

    def _best(self) -> Found:
        assert self.best is not None
        return Found(self.best.x, self.best.mu, self.best.gap, self.steps)


def slack(x: Floats, gradient: Floats, blocks: Floats) -> float:
    """About the users' part of the gap: 1/2 g_i' H_i^-1 g_i, with steps of at most 1 + |x_i|."""
    size = norms(gradient)
    flat = FLAT * np.trace(blocks, axis1=1, axis2=2) + TINY
    least = np.maximum(size / (1 + norms(x)), flat)
    damped = blocks + least[:, None, None] * np.eye(x.shape[1])
    return float((gradient * np.linalg.solve(damped, gradient[..., None])[..., 0]).sum()) / 2


@cache
def _libraries() -> ThreadpoolController:
    """The linear algebra that is loaded; looking for it takes 10 ms."""
    return ThreadpoolController()
