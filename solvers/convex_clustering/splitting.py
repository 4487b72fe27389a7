"""Douglas-Rachford splitting of the sum-of-norms problem (Armacki et al. 2022, (3)): `dr`.

    min over X of  F(X) + lam Omega(X),  F = sum_i f_i(x_i),  Omega = sum_{i<j} w_ij |x_i - x_j|

The server keeps one vector s_i a user. In a round it solves a convex clustering problem,
Y = prox of (lam/rho) Omega at S, sends 2 y_i - s_i, gets x_i = argmin f_i(x) + rho/2 |x - .|^2
back, and moves s_i by relax (x_i - y_i). Users that were not asked leave their s_i where it is.
Y is fused exactly, where PDMM's x_i only come close.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.solvers.convex_clustering.couplings import Penalty
from corsage.solvers.convex_clustering.exact.edges import Edges
from corsage.solvers.convex_clustering.exact.sum_of_norms import prox
from corsage.solvers.convex_clustering.halves import Facts, Moved, Rules, moved_edges, moved_users

RELAX = 1.6
"""The part of a step that s takes; below 2."""
UNPULLED = 1e-7
"""rho as a share of the curvature where nothing pulls: proximal steps are then whole ones."""


@dataclass(frozen=True, eq=False)
class DrState:
    """s and y (N, d) of the users, and the duals (E, d) of the prox, lam included.

    They are mu_ij with |mu_ij| <= lam w_ij and sum_j mu_ij = rho (s_i - y_i).
    """

    s: Floats
    y: Floats
    mu: Floats

    @classmethod
    def zeros(cls, users: int, edges: Edges, d: int) -> DrState:
        """The start: s_i = y_i = 0."""
        return cls(np.zeros((users, d)), np.zeros((users, d)), np.zeros((len(edges), d), order="F"))


S = TypeVar("S", bound=DrState)


def request(state: DrState, users: Ints) -> Floats:
    """2 y_i - s_i: what the users (m,) take their proximal step from, with kappa = rho."""
    return 2 * state.y[users] - state.s[users]


def update(
    state: S,
    users: Ints,
    found: Floats,
    edges: Edges,
    lam: float,
    rho: float,
    relax: float = RELAX,
) -> S:
    """Move s_i of the users by what they sent back, and solve for the next Y (server prox)."""
    s = state.s.copy()
    s[users] += relax * (found - state.y[users])
    return server_prox(replace(state, s=s), edges, lam, rho)


def server_prox(state: S, edges: Edges, lam: float, rho: float) -> S:
    """Y = prox of (lam/rho) Omega at S, from the last duals on."""
    y, own = prox(state.s, lam / rho, edges, warm=state.mu / rho)
    return replace(state, y=y, mu=rho * own)


def start_rho(curvature: float, slope: float, pull: float, c: float = 0.7) -> float:
    """rho = c H pull/slope, which fits small and large lam alike.

    H is the mean over the users of trace(hessian of f_i at 0)/d, `slope` that of |grad f_i(0)|,
    and `pull` the most that the penalty can pull at a user, lam times its mean degree: slope/H is
    how far models are from 0, and pull/rho how far the server's prox moves them.
    """
    return c * curvature * (pull / slope if pull > 0 and slope > 0 else 1.0)


@dataclass(frozen=True, eq=False)
class Splitting(DrState):
    """The server's half of `dr`: its state, and `rho`, the weight of the proximal steps."""

    rho: float

    @classmethod
    def begin(cls, problem: Penalty, d: int, facts: Facts, rules: Rules) -> Splitting:
        """All are 0; d numbers in a model."""
        edges = problem.edges
        pull = problem.lam * (2 * float(edges.w.sum()) / max(edges.n, 1))
        rho = rules.rho
        if rho is None and pull == 0:
            rho = UNPULLED * facts.curvature
        if rho is None:
            rho = start_rho(facts.curvature, facts.slope, pull)
        start = DrState.zeros(edges.n, edges, d)
        return cls(start.s, start.y, start.mu, rho)

    @property
    def models(self) -> Floats:
        """The users' models: Y (N, d), whose rows are exactly equal where users are fused."""
        return self.y

    def request(self, problem: Penalty, rules: Rules, rows: Ints) -> tuple[Floats, Floats]:
        """p_i = 2 y_i - s_i, kappa_i = rho."""
        return request(self, rows), np.full(len(rows), self.rho)

    def after(
        self, problem: Penalty, rules: Rules, rows: Ints, x: Floats, number: int
    ) -> tuple[Splitting, str]:
        """s_i += relax (x_i - y_i), then Y = prox of (lambda/rho) Omega at S."""
        return update(self, rows, x, problem.edges, problem.lam, self.rho, rules.relax), ""

    def moved(self, rows: Moved) -> Splitting:
        """The state of the users that are there now; a new one begins at the mean."""
        s, y = moved_users(self.s, rows.users), moved_users(self.y, rows.users)
        return Splitting(s, y, moved_edges(self.mu, rows.edges), self.rho)

    def by_columns(self) -> Splitting:
        """The same numbers, those of the edges column by column, which is faster."""
        return replace(self, mu=np.asfortranarray(self.mu))
