"""Douglas-Rachford splitting of the sum-of-norms problem (Armacki et al. 2022, (3)): `dr`.

    min over X of  F(X) + lam Omega(X),  F = sum_i f_i(x_i),  Omega = sum_{i<j} w_ij |x_i - x_j|

The server keeps one vector s_i a user. In a round it solves a convex clustering problem,
Y = prox of (lam/rho) Omega at S, sends 2 y_i - s_i, gets x_i = argmin f_i(x) + rho/2 |x - .|^2
back, and moves s_i by relax (x_i - y_i). Users that were not asked leave their s_i where it is.
Y is fused exactly, where PDMM's x_i only come close.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.solvers.convex_clustering.exact.edges import Edges
from corsage.solvers.convex_clustering.exact.sum_of_norms import prox

RELAX = 1.6
"""How much of a step s takes; below 2."""


@dataclass(frozen=True)
class DrState:
    """s and y (N, d) of the users, and the duals (E, d) of the prox, lam included.

    `duals` are mu_ij with |mu_ij| <= lam w_ij and sum_j mu_ij = rho (s_i - y_i).
    """

    s: Floats
    y: Floats
    duals: Floats

    @classmethod
    def zeros(cls, users: int, edges: Edges, d: int) -> DrState:
        """The start: s_i = y_i = 0."""
        return cls(np.zeros((users, d)), np.zeros((users, d)), np.zeros((len(edges), d), order="F"))


def request(state: DrState, users: Ints) -> Floats:
    """2 y_i - s_i: what the users (m,) take their proximal step from, with kappa = rho."""
    return 2 * state.y[users] - state.s[users]


def update(
    state: DrState,
    users: Ints,
    found: Floats,
    edges: Edges,
    lam: float,
    rho: float,
    relax: float = RELAX,
) -> DrState:
    """Move s_i of the users by what they sent back, and solve for the next Y (server prox)."""
    s = state.s.copy()
    s[users] += relax * (found - state.y[users])
    return server_prox(replace(state, s=s), edges, lam, rho)


def server_prox(state: DrState, edges: Edges, lam: float, rho: float) -> DrState:
    """Y = prox of (lam/rho) Omega at S, from the last duals on."""
    y, own = prox(state.s, lam / rho, edges, warm=state.duals / rho)
    return replace(state, y=y, duals=rho * own)


def start_rho(curvature: float, slope: float, pull: float, c: float = 0.7) -> float:
    """rho = c H pull/slope, which fits small and large lam alike.

    H is the mean over the users of trace(hessian of f_i at 0)/d, `slope` that of |grad f_i(0)|,
    and `pull` the most that the penalty can pull at a user, lam times its mean degree: slope/H is
    how far models are from 0, and pull/rho how far the server's prox moves them.
    """
    return c * curvature * (pull / slope if pull > 0 and slope > 0 else 1.0)
