"""A primal-dual interior-point method for the sum-of-norms problem on graphs of few edges.

    min over X, t of  sum_i f_i(x_i) + sum_e r_e t_e,  t_e >= |z_e|,  z = B X,  r_e = lam w_e

is a problem over second-order cones (Andersen, Christiansen, Conn and Overton 2000). Each step of
Mehrotra's predictor and corrector, with Nesterov and Todd's scaling, solves two systems with one
matrix, blockdiag(H_i) + B' W B, an edge's block a_e I - b_e w_e w_e': as many unknowns as the
models have, which a sparse factor solves at once. Ten to twenty steps are enough for any lam.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field

import numpy as np

from corsage.core.arrays import Bools, Floats, Ints
from corsage.solvers.convex_clustering.exact.certificate import Problem, edge_terms
from corsage.solvers.convex_clustering.exact.cones import Pairs, Scaling, Step, dot
from corsage.solvers.convex_clustering.exact.edges import norms
from corsage.solvers.convex_clustering.exact.finish import Finish
from corsage.solvers.convex_clustering.exact.newton_system import System, affordable
from corsage.solvers.convex_clustering.exact.sparse_factor import Solve

INTERIOR_STEPS = 60
"""A limit of steps."""
INSIDE = 0.99
"""The share of the way to the border of the cones that a step takes at most."""
CORRECTIONS = 2
"""Times that the corrector is computed anew, from the step that it led to."""
SHORTEST_STEP = 1e-4
"""A shorter step is the last one."""
ADDED_CURVATURE = 1e-10
"""Added to the curvature of the f_i, as a share of their largest: some are flat."""
EARLY, HANDFUL, FEW = 1e-3, 30, 10
"""A partition is tried from that relative gap on, if it comes twice in a row and has few clusters:
so many, or as many as one user in so many, and half the users at most."""
SMALL = 300
"""Users that are not worth a smaller problem."""
NEAR, SURE, MUCH = 0.03, 0.1, 0.4
"""The relative gap from which on, and the ratio of slacks below which, users are fused for sure;
clusters that are left, as a share of the users, that make the problem much smaller."""
CIRCLING_STEPS, AFTER_ALL = 12, 4
"""Steps after which the edges' part of the gap must be the least so far, or it goes in circles;
and with it closed, after which the users' part does not close."""
STEPS_AFTER = 4
"""Steps with the gap closed in which models that are fused exactly are looked for."""
EVEN = 1e-10, 1e-100
"""Radii from that share of the largest on, which is at least so large, are not too different."""


def suits(problem: Problem) -> bool:
    """True if the method is the one to take: a sparse factor is affordable, radii are alike."""
    return even(problem) and affordable(problem.edges, problem.costs.d)


def even(problem: Problem) -> bool:
    """True if radii are alike."""
    share, least = EVEN
    radius = problem.costs.strongest(problem.radius)
    return bool(radius.min() >= max(share * radius.max(), least))


@dataclass
class Interior:
    """The iteration from x (n, d) and mu = 0 on, or the duals of a smaller lam.

    Parameters
    ----------
    problem : costs, graph, lam.
    finish : where points and partitions are offered.
    x : where it is.
    duals : those to begin at (E, d), all shorter than their radii.
    shrinks : end as soon as users are fused for sure that make the problem much smaller, once.
    merged : the partition that it then ended with.
    pairs : lengths, differences and duals of the edges.
    steps : how many were taken.
    """

    problem: Problem
    finish: Finish
    x: Floats
    duals: InitVar[Floats | None] = None
    shrinks: bool = False
    merged: Ints | None = None
    pairs: Pairs = field(init=False)
    steps: int = 0

    def __post_init__(self, duals: Floats | None) -> None:
        """The duals begin in the middle of their balls, or where they are known to be near."""
        z = self.problem.edges.differences(self.x).T
        radius = self.problem.costs.strongest(self.problem.radius)
        if duals is not None and duals.any() and np.all(norms(duals) < radius):
            self.pairs = Pairs.near(z, radius, duals.T)
        else:
            self.pairs = Pairs.outside(z, radius)

    @property
    def mu(self) -> Floats:
        """The duals, (E, d)."""
        return self.pairs.mu.T

    def run(self) -> bool:
        """True if the gap was closed; if not, it can go on."""
        last, left, least = b"", STEPS_AFTER, list[float]()
        while self.steps < INTERIOR_STEPS and self._step() > SHORTEST_STEP:
            self.steps += 1
            spread = float(edge_terms(self.pairs.z.T, self.mu, self.problem.radius).sum())
            relative = self.problem.relative(spread, self.x)
            least.append(min([relative, *least[-1:]]))
            if len(least) > CIRCLING_STEPS and least[-1] == least[-1 - CIRCLING_STEPS]:
                return False
            if len(least) > AFTER_ALL and least[-1 - AFTER_ALL] <= self.finish.tolerance:
                return False
            if self.shrinks and relative < NEAR and self._shrinks():
                return False
            if relative > EARLY:
                continue
            labels = self.problem.edges.components(self._near())
            few, key = labels.max() < self._few, labels.tobytes()
            again, last = key == last, key
            if few and again and self.finish.tries(labels, self.x, self.mu, spread):
                return True
            if relative <= self.finish.tolerance and self.finish.close(labels, self.x, self.mu):
                left -= 1
                if (again and not few) or left == 0:
                    return True
        return False

    @property
    def _few(self) -> float:
        """Clusters with which a partition's reduced problem is small."""
        n = len(self.x)
        return min(max(HANDFUL, n / FEW), n / 2)

    def _shrinks(self) -> bool:
        """True if many users are fused for sure: then they are `merged`."""
        n = len(self.x)
        if n <= SMALL:
            return False
        near = self._near(SURE)
        if np.count_nonzero(near) <= (1 - MUCH) * n:  # an edge makes one cluster less at most
            return False
        labels = self.problem.edges.components(near)
        if labels.max() >= MUCH * n:
            return False
        self.merged, self.shrinks = labels, False
        return True

    def _near(self, share: float = 1.0) -> Bools:
        """The edges that are nearly fused: of an edge's two slacks, one vanishes.

        |z_e| vanishes on fused edges, r_e - |mu_e| on all others; `share`: how much of the other
        it may be.
        """
        pairs = self.pairs
        length = np.sqrt(dot(pairs.z, pairs.z))
        slack = pairs.yy / (pairs.r * (pairs.r + np.sqrt(dot(pairs.mu, pairs.mu))))
        return np.asarray(length <= share * slack * length.mean())

    def _step(self) -> float:
        """One step, and its length."""
        pairs, costs = self.pairs, self.problem.costs
        scaling = Scaling(pairs)
        slope = costs.gradient(self.x) + self.problem.edges.adjoint(self.mu)
        solve = self._system(scaling).factored(damping=0.0)
        _, far = self._direction(scaling, solve, slope, (-pairs.t, -pairs.z))
        total, way = float(pairs.sy.sum()), pairs.along(far)
        share = np.clip(way.gap(min(1.0, way.room)) / total, 0.0, 1.0)
        centre = share**3 * total / len(pairs.t)
        dx, step = self._direction(scaling, solve, slope, scaling.corrected(far, centre))
        way = pairs.along(step)
        for _ in range(CORRECTIONS):  # a factor is dearer than another solution with it
            if INSIDE * way.room >= 1.0:
                break
            h = scaling.corrected(step, centre)
            other, step = self._direction(scaling, solve, slope, h)
            better = pairs.along(step)
            if not better.room > way.room:
                break
            dx, way = other, better
        length = min(1.0, INSIDE * way.room)
        if not (np.isfinite(dx).all() and length > SHORTEST_STEP):
            return 0.0
        self.x, self.pairs = self.x + length * dx, way.at(length)
        return length

    def _system(self, scaling: Scaling) -> System:
        """The matrix of the step."""
        costs = self.problem.costs
        blocks = costs.hessian(self.x) + ADDED_CURVATURE * costs.smoothness() * np.eye(costs.d)
        return System(blocks, self.problem.edges, scaling.a, scaling.b, scaling.w.T)

    def _direction(
        self, scaling: Scaling, solve: Solve, slope: Floats, h: tuple[Floats, Floats]
    ) -> tuple[Floats, Step]:
        """dx, and the step that it means for the edges: W^2 dy + ds = h, dy = (0, -dmu)."""
        edges, (h0, h1) = self.problem.edges, h
        dx = solve(edges.adjoint(scaling.bent(h1).T) - slope)
        dz = edges.differences(dx).T
        v = dz - h1
        dt = h0 + 2 * scaling.w0 * dot(scaling.w, v) / scaling.span
        return dx, Step(dt, dz, scaling.bent(v))
