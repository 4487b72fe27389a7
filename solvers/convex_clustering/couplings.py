"""Couplings of users that are quadratic models for now: a penalty, clusters, or both.

Each kind solves its problem exactly (runs.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.solvers.convex_clustering.exact.certificate import Problem, feasible
from corsage.solvers.convex_clustering.exact.costs import LossCosts
from corsage.solvers.convex_clustering.exact.edges import Edges, norms
from corsage.solvers.convex_clustering.exact.partition import carried, reduced
from corsage.solvers.convex_clustering.exact.sum_of_norms import Solution, fit
from corsage.solvers.losses.quadratic import Quadratic


@dataclass(frozen=True)
class Step:
    """A solution of the models' problem: x (N, d), slopes v (N, d), and the next one's start."""

    x: Floats
    v: Floats
    solution: Solution | None = None


class Coupling(Protocol):
    """A coupling of the users: a penalty, or clusters that have one model each."""

    def solve(self, quadratic: Quadratic, start: Step | None, tolerance: float) -> Step:
        """The solution, with slopes for which the sum of the users' minima is a lower bound."""
        ...

    def penalty(self, x: Floats) -> float:
        """The term that is added to sum_i f_i(x_i)."""
        ...


@dataclass(frozen=True)
class Penalty:
    """lam sum_{(i,j) in E} w_ij |x_i - x_j|."""

    lam: float
    edges: Edges

    def solve(self, quadratic: Quadratic, start: Step | None, tolerance: float) -> Step:
        """x and v = B' mu."""
        warm = None if start is None else start.solution
        found = fit(quadratic, self.lam, self.edges, warm, tolerance)
        mu = feasible(found.mu, self.lam * self.edges.w)
        return Step(found.x, self.edges.adjoint(mu), found)

    def penalty(self, x: Floats) -> float:
        """lam Omega(X)."""
        return self.lam * float((self.edges.w * norms(self.edges.differences(x))).sum())


@dataclass(frozen=True)
class Clusters:
    """x_i = w_k for all users i of cluster k, and no pull between clusters."""

    labels: Ints

    def solve(self, quadratic: Quadratic, start: Step | None, tolerance: float) -> Step:
        """w_k, and the slopes against the users' gradients there, which sum up to 0."""
        a, b = (np.asarray(t.numpy()) for t in (quadratic.a, quadratic.b))
        count = int(self.labels.max()) + 1
        sums, rights = np.zeros((count, *a.shape[1:])), np.zeros((count, b.shape[1]))
        np.add.at(sums, self.labels, a)
        np.add.at(rights, self.labels, b)
        w = np.linalg.solve(sums, rights[..., None])[..., 0]
        x = np.asarray(w[self.labels], np.float64)
        v = b - np.einsum("nij,nj->ni", a, x)
        left = np.zeros((count, b.shape[1]))
        np.add.at(left, self.labels, v)
        rest = left / np.bincount(self.labels)[:, None]
        return Step(x, np.asarray(v - rest[self.labels], np.float64))

    def penalty(self, x: Floats) -> float:
        """None."""
        return 0.0


@dataclass(frozen=True)
class Parts:
    """The penalty, where all users of a cluster have one model: the reduced problem (5).

    Its gap is that of the whole problem: where it closes, the clusters are the solution's.
    """

    labels: Ints
    lam: float
    edges: Edges

    def solve(self, quadratic: Quadratic, start: Step | None, tolerance: float) -> Step:
        """The fused models, and the duals that a flow inside the clusters makes of theirs."""
        problem = Problem(LossCosts(quadratic), self.edges, self.lam)
        found = reduced(problem, self.labels)
        mu, _ = carried(problem, found)
        return Step(found.x, self.edges.adjoint(feasible(mu, problem.radius)))

    def penalty(self, x: Floats) -> float:
        """lam Omega(X)."""
        return Penalty(self.lam, self.edges).penalty(x)
