"""Algorithm 1 at the server: what it remembers, and its half of a round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.strategies.convex_clustering.graph import Moved
from corsage.strategies.convex_clustering.solver import (
    Facts,
    Problem,
    Rules,
    moved_edges,
    moved_users,
)

if TYPE_CHECKING:
    from corsage.solvers.convex_clustering.pdmm import PdmmState


@dataclass(frozen=True, eq=False)
class Pdmm:
    """Algorithm 1 on half the edges, `pdmm` (solvers/convex_clustering/pdmm.py).

    Parameters
    ----------
    x : the users' models (N, d).
    z, mu, muh : of the edges (E, d): z_ij stands for x_i - x_j, mu_ij is its multiplier, muh_ij
        the damped one.
    rho, tau : the weight of the constraints, and the share of a whole dual step, as they are now.
    broken : the largest |x_i - x_j - z_ij| of the first rounds, which those of later ones are
        compared with; None before the first.
    """

    x: Floats
    z: Floats
    mu: Floats
    muh: Floats
    rho: float
    tau: float
    broken: float | None = None

    @classmethod
    def begin(cls, problem: Problem, d: int, facts: Facts, rules: Rules) -> Pdmm:
        """All are 0, not the local models; d numbers in a model."""
        from corsage.solvers.convex_clustering import pdmm

        users = problem.edges.n
        rho = pdmm.start_rho(facts.curvature, users) if rules.rho is None else rules.rho
        tau = pdmm.default_tau(rules.p_users, rules.p_pairs) if rules.tau is None else rules.tau
        start = pdmm.PdmmState.zeros(users, problem.edges, d)
        return cls(start.x, start.z, start.mu, start.muh, rho, tau)

    @property
    def models(self) -> Floats:
        """The users' models X (N, d)."""
        return self.x

    def request(self, problem: Problem, rules: Rules, rows: Ints) -> tuple[Floats, Floats]:
        """p_i and kappa_i of (16)."""
        from corsage.solvers.convex_clustering import pdmm

        return pdmm.centres(self._state, problem.edges, self.rho, rules.eta, rows)

    def after(
        self, problem: Problem, rules: Rules, rows: Ints, x: Floats, number: int
    ) -> tuple[Pdmm, str]:
        """(17) to (19), then rho is balanced and tau guarded."""
        from corsage.solvers.convex_clustering import pdmm

        edges, before = problem.edges, self._state
        settings = pdmm.Settings(self.rho, self.tau, rules.nu, rules.eta)
        pairs = pdmm.chosen_pairs(rules.seed, number, edges, rules.p_pairs)
        found = pdmm.absorb(before, rows, x, edges, problem.lam, settings, pairs)
        left = pdmm.residuals(before, found, edges, self.rho, rules.p_pairs)
        rho = self.rho
        if rules.rho is None and number % pdmm.BALANCE_EVERY == 0:
            rho = pdmm.balanced(rho, left.primal, left.dual)
        tau, broken = pdmm.guard(self.tau, self._reference(left.broken, rules, number), left.broken)
        note = f"round {number}: the residual grew tenfold, tau is now {tau:.3g}"
        after = Pdmm(found.x, found.z, found.mu, found.muh, rho, tau, broken)
        return after, note if tau < self.tau else ""

    def _reference(self, broken: float, rules: Rules, number: int) -> float:
        """What the residual is compared with: the largest while not every user was active once."""
        if self.broken is None:
            return max(0.0, broken)
        return max(self.broken, broken) if number * rules.p_users <= 2 else self.broken

    def moved(self, rows: Moved) -> Pdmm:
        """The state of the users that are there now; a new one begins at the mean."""
        z, mu, muh = (moved_edges(of, rows.edges) for of in (self.z, self.mu, self.muh))
        return replace(self, x=moved_users(self.x, rows.users), z=z, mu=mu, muh=muh)

    def by_columns(self) -> Pdmm:
        """The same numbers, those of the edges column by column, which is faster."""
        z, mu, muh = (np.asfortranarray(each) for each in (self.z, self.mu, self.muh))
        return replace(self, z=z, mu=mu, muh=muh)

    @property
    def _state(self) -> PdmmState:
        from corsage.solvers.convex_clustering.pdmm import PdmmState

        return PdmmState(self.x, self.z, self.mu, self.muh)
