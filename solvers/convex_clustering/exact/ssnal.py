"""Semismooth Newton augmented Lagrangian (Sun, Toh, Yuan 2021) for the sum-of-norms problem.

With z = B x and duals mu, |mu_e| <= r_e = lam w_e, a step of the method of multipliers minimises
sum f_i(x_i) + the Moreau envelope of r_e |z_e| at mu_e, sigma, and its slopes are the next duals:
mu_e+ = projection of mu_e + sigma z_e onto the ball of radius r_e. Newton's method finds the
minimum; an edge whose projection is the point itself is fused. As soon as the fused edges suggest a
partition twice, its reduced problem is solved: if the duality gap closes, that is the solution,
exactly fused. So sigma hardly ever gets large.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.solvers.convex_clustering.exact.certificate import Problem, edge_terms
from corsage.solvers.convex_clustering.exact.descent import Newton, Place
from corsage.solvers.convex_clustering.exact.edge_functions import Envelope
from corsage.solvers.convex_clustering.exact.finish import Finish, Found, slack
from corsage.solvers.convex_clustering.exact.fusion import candidates

SIGMA, WARM = 1.0, 30.0
"""The first sigma, as a multiple of curvature/degree, from nothing and from known duals."""
SIGMA_GROWTH, FAST, EASY = 3.0, 8.0, 4
"""By how much sigma grows, and after at most so many Newton steps."""
INNER = 0.1
"""The users' part of the gap, as a share of the edges' part, that ends the inner iteration."""
OUTER, INNER_STEPS, ALL_STEPS = 60, 30, 150
"""Limits of outer iterations, and of Newton steps in one and in all: most problems take 10 to 70,
and who is not there after so many has inputs that leave no digits."""
SMALL_PROBLEM, EARLY_GAP = 500, 1e-3
"""Clusters and relative gap up to which a partition is tried before the gap is closed."""
SHARP = 1e-13
"""The gradient that is only rounding, as a share of what pulls at a user."""
OUTER_AFTER = 4
"""Outer iterations with the gap closed in which models that are fused exactly are looked for."""
NO_BETTER, GAP_SHARE = 5, 0.5
"""Outer iterations with the edges' part closed after which the best gap must be that share of what
it was, or it is as good as it gets: more can be only rounding."""


@dataclass
class Solver:
    """The iteration, from x (n, d) and feasible duals mu (E, d), until the gap is closed.

    Parameters
    ----------
    problem : costs, graph, lam.
    x, mu : where it is.
    finish : where points and partitions are offered; it has the relative gap to end with.
    warm : whether mu are duals of a similar problem.
    sharp : gradients must vanish but for rounding. A user whose f_i grows in one direction only has
        a minimum with v_i = -grad f_i, but with no v_i a little off to the wrong side.
    """

    problem: Problem
    x: Floats
    mu: Floats
    finish: Finish
    warm: bool = False
    steps: int = 0
    sharp: bool = False

    def run(self, guesses: list[Ints]) -> Found:
        """The solution; partitions that may be the solution's are tried first."""
        for labels in guesses:
            if self.finish.tries(labels, self.x, self.mu, np.inf):
                return self.finish.found(self.steps)
        self._goes_on_from(self.finish.best)
        problem, last, left, gaps = self.problem, set[bytes](), OUTER_AFTER, list[float]()
        sigma = WARM if self.warm else SIGMA
        sigma *= self.finish.curvature / float(problem.edges.degrees.mean())
        for _ in range(OUTER):
            term, steps, spread = self._inner(sigma)
            relative = problem.relative(spread, self.x)
            closed = relative <= self.finish.tolerance
            guesses = candidates(problem.edges, term.z, term.fused)
            for place, labels in enumerate(guesses):
                small = labels.max() < SMALL_PROBLEM and relative < EARLY_GAP
                settled = small and labels.tobytes() in last
                ripe = closed and (small or not place)
                if (ripe or settled) and self.finish.tries(labels, self.x, self.mu, spread):
                    return self.finish.found(self.steps)
            if closed:
                left -= self.finish.close(guesses[0], self.x, self.mu)
                self.sharp |= not np.isfinite(self.finish.found(0).gap)
                if left == 0:
                    return self.finish.found(self.steps)
                gaps.append(self.finish.found(0).gap)
                if len(gaps) > NO_BETTER and not gaps[-1] < GAP_SHARE * gaps[-1 - NO_BETTER]:
                    return self.finish.found(self.steps)
            if self.steps >= ALL_STEPS:
                break
            last = {labels.tobytes() for labels in guesses}
            sigma *= FAST if steps <= EASY else SIGMA_GROWTH
        self.finish.offer(self.x, self.mu)
        return self.finish.found(self.steps)

    def _goes_on_from(self, found: Found | None) -> None:
        """A partition's solution that is better, but whose gap is not closed, is where to begin."""
        if found is not None and self.problem.value(found.x) < self.problem.value(self.x):
            self.x, self.mu, self.warm = found.x, found.mu, True

    def _inner(self, sigma: float) -> tuple[Envelope, int, float]:
        """One step of the method of multipliers; the edges' part of the gap after it."""
        mu, radius = self.mu, self.problem.radius
        size = self.problem.value(self.x)
        least = self.finish.tolerance * abs(size) / 10

        def envelope(z: Floats) -> Envelope:
            return Envelope(z, mu, radius, sigma)

        def enough(place: Place, gradient: Floats, blocks: Floats) -> bool:
            if self.sharp:
                return float(np.abs(gradient).max()) <= SHARP * float(radius.sum()) / len(self.x)
            edges = float(edge_terms(place.z, place.term.slope, radius).sum())
            return slack(place.x, gradient, blocks) <= INNER * max(edges, least)

        method = Newton(self.problem.costs, self.problem.edges, envelope)
        done, steps = method.run(self.x, enough, INNER_STEPS)
        self.x, self.mu, self.steps = done.x, done.term.slope, self.steps + steps
        return envelope(done.z), steps, float(edge_terms(done.z, self.mu, radius).sum())
