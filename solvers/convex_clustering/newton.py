"""Proximal Newton steps of one problem (runs.py), round by round: the server's state and half."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from corsage.core.arrays import INFINITE, Floats, Ints
from corsage.solvers.convex_clustering.couplings import Penalty, Step
from corsage.solvers.convex_clustering.exact.sum_of_norms import Solution
from corsage.solvers.convex_clustering.expansions import Expansion, Probe
from corsage.solvers.convex_clustering.halves import Moved, moved_edges, moved_users
from corsage.solvers.convex_clustering.runs import FIRST_DAMPING, Run, Solved, Task

BASE = ("y", "value", "gradient", "hessian", "curvature")
"""The parts of the users' last answers that are kept."""
UNCERTIFIED: dict[str, Any] = {
    "objective": np.inf,
    "size": np.inf,
    "lower": -np.inf,
    "near": np.inf,
}
"""The numbers of a certificate, where not all users answered."""


@dataclass(frozen=True, eq=False)
class Newton:
    """Newton's method on all users' quadratic models, `newton`.

    Parameters
    ----------
    x : the best models so far (N, d).
    mu : the duals of the edges (E, d) that belong to them.
    y, value, gradient, hessian, curvature : the expansions that the next models are made of.
    centre, damping, failed : where the next step is damped to, how much, and steps that failed.
    objective, size : P(x), and what gaps are a share of; infinite if not all users answered.
    lower, near : the lower bound on P, and a gap against what is near (infinite: none is known).
    """

    x: Floats
    mu: Floats
    y: Floats
    value: Floats
    gradient: Floats
    hessian: Floats
    curvature: Floats
    centre: Floats
    damping: float
    failed: int = 0
    objective: float = field(default=np.inf, metadata=INFINITE)
    size: float = field(default=np.inf, metadata=INFINITE)
    lower: float = field(default=-np.inf, metadata=INFINITE)
    near: float = field(default=np.inf, metadata=INFINITE)

    @classmethod
    def begin(cls, problem: Penalty, local: Expansion, near: Solved | None) -> Newton:
        """From the users' own models, or from a solution that is near the one that is wanted."""
        x, known = local.y, local
        mu = np.zeros((len(problem.edges), x.shape[1]), order="F")
        if near is not None and near.base is not None and near.mu is not None:
            x, known, mu = near.x, near.base, np.asfortranarray(near.mu)
        base: dict[str, Any] = {name: getattr(known, name) for name in BASE}
        return cls(x=x, mu=mu, centre=known.y, damping=FIRST_DAMPING, **base)

    @property
    def models(self) -> Floats:
        """The users' models X (N, d)."""
        return self.x

    def step(self, problem: Penalty, tolerance: float) -> tuple[Run, list[Probe]]:
        """The solutions of the models' problem, and what is asked about them."""
        run = self._run(problem)
        return run, run.propose(tolerance, None)

    def after(self, run: Run, found: Sequence[Expansion]) -> Newton:
        """The state once all users have answered."""
        run.take(found)
        assert run.best is not None
        solution = run.best.solution
        base: dict[str, Any] = {name: getattr(run.base, name) for name in BASE}
        return replace(
            self,
            x=run.best.x,
            mu=self.mu if solution is None else solution.mu,
            centre=run.centre,
            damping=run.damping,
            failed=run.failed,
            objective=run.value,
            size=run.size,
            lower=run.lower,
            near=run.near,
            **base,
        )

    def after_some(self, run: Run, found: Expansion, rows: Ints) -> Newton:
        """The state if only some users answered: the step is taken, nothing is certified."""
        step, news = run.steps[0], dict[str, Any]()
        for name in BASE:
            news[name] = getattr(self, name).copy()
            news[name][rows] = getattr(found, name)
        mu = self.mu if step.solution is None else step.solution.mu
        return replace(self, x=step.x, mu=mu, centre=news["y"], failed=0, **news, **UNCERTIFIED)

    @property
    def gap(self) -> float:
        """At most so much is P(x) above its minimum; infinite: nothing is known."""
        return min(self.objective - self.lower, self.near)

    def moved(self, rows: Moved) -> Newton:
        """The state of the users that are there now; a new one begins at the mean."""
        users: dict[str, Any] = {
            name: moved_users(getattr(self, name), rows.users) for name in ("x", "y", "centre")
        }
        there = rows.users >= 0
        for name in ("value", "gradient", "hessian", "curvature"):
            old = getattr(self, name)
            users[name] = np.zeros((len(there), *old.shape[1:]))
            users[name][there] = old[rows.users[there]]
        mu = moved_edges(self.mu, rows.edges)
        return replace(self, mu=mu, failed=0, **users, **UNCERTIFIED)

    def by_columns(self) -> Newton:
        """The same numbers, those of the edges column by column, which is faster."""
        return replace(self, mu=np.asfortranarray(self.mu))

    @property
    def expansion(self) -> Expansion:
        """The parts of the users' last answers that are kept."""
        none = np.zeros(len(self.x))
        return Expansion(
            self.y, self.value, self.gradient, self.hessian, none, none, none > 0, none,
            self.curvature, none > 0,
        )  # fmt: skip

    def _run(self, problem: Penalty) -> Run:
        """The method where it stands."""
        solution = Solution(self.x, self.mu, problem.lam, np.nan, np.inf, np.inf, False, 0)
        run = Run(Task(problem), self.expansion, self.centre, self.damping, (), self.failed)
        if np.isfinite(self.objective) or self.mu.any():
            run.best = Step(self.x, problem.edges.adjoint(self.mu), solution)
        run.value, run.size = self.objective, self.size
        run.lower, run.near = self.lower, self.near
        return run
