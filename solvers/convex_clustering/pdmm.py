"""PDMM for the sum-of-norms problem: Algorithm 1 of Armacki et al. 2022, on half the edges.

    min over x_1, ..., x_N of  P(X) = sum_i f_i(x_i) + lam sum_{i<j} w_ij |x_i - x_j|

z_ij stands for x_i - x_j (14), mu_ij is its multiplier and muh_ij the damped one of (19). An edge
is kept once, i < j, with z_ji = -z_ij and mu_ji = -mu_ij: with both orders kept and drawn one by
one, the two would drift apart, and the users' steps would not lead to the optimum. z, mu and muh
stay at the server; a user gets a point p_i and a weight kappa_i and sends back
argmin f_i(x) + kappa_i/2 |x - p_i|^2, which is (16).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.core.seeding import generator
from corsage.solvers.convex_clustering.couplings import Penalty
from corsage.solvers.convex_clustering.exact.edges import Edges, norms
from corsage.solvers.convex_clustering.halves import Facts, Moved, Rules, moved_edges, moved_users

BALANCE_EVERY = 10
"""Rounds from one balancing of the residuals to the next."""
TINY = 1e-300
"""Keeps a quotient of two zeros finite."""

Pairs = Ints | slice
"""The numbers of some edges, or all of them."""
Solve = Callable[[Ints, Floats, Floats], Floats]
"""(users (m,), p (m, d), kappa (m,)) -> x (m, d), the minimisers of f_i + kappa_i/2 |x - p_i|^2."""


@dataclass(frozen=True, eq=False)
class PdmmState:
    """x (N, d) of the users; z, mu and muh (E, d) of the edges."""

    x: Floats
    z: Floats
    mu: Floats
    muh: Floats

    @classmethod
    def zeros(cls, users: int, edges: Edges, d: int) -> PdmmState:
        """The start: x_i = 0 for all, not the local models."""
        own = (np.zeros((len(edges), d), order="F") for _ in range(3))
        return cls(np.zeros((users, d)), *own)


S = TypeVar("S", bound=PdmmState)


@dataclass(frozen=True)
class Settings:
    """The numbers of Algorithm 1.

    Parameters
    ----------
    rho : weight of the constraints x_i - x_j = z_ij.
    tau : share of a whole dual step that is taken, (18).
    nu : how far the damped dual goes back, (19).
    eta : weight of the distance to the last iterate, (16), (17).
    """

    rho: float
    tau: float = 1 / 3
    nu: float = 2 / 3
    eta: float = 0.0


def default_tau(users_share: float, pairs_share: float) -> float:
    """A third; less if edges are drawn more often than users."""
    return min(1.0, users_share / pairs_share) / 3


def start_rho(curvature: float, users: int, c: float = 5.0) -> float:
    """rho = c H/N, H the mean over the users of trace(hessian of f_i at 0)/d."""
    return c * curvature / users


def centres(
    state: PdmmState, edges: Edges, rho: float, eta: float, users: Ints
) -> tuple[Floats, Floats]:
    """p (m, d) and kappa (m,) of the given users, (16) as a proximal step.

    kappa_i = rho (number of i's edges) + eta and
    kappa_i p_i = sum_j [rho (x_j + z_ij) - muh_ij] + eta x_i. A user without an edge has kappa 0.
    """
    pull = edges.adjoint(state.muh + rho * (edges.differences(state.x) - state.z))[users]
    kappa = rho * edges.degrees[users] + eta
    p = state.x[users] - pull / np.maximum(kappa, TINY)[:, None]
    return np.asarray(p), np.asarray(kappa, np.float64)


def update_pairs(
    state: PdmmState, edges: Edges, lam: float, rho: float, eta: float, pairs: Pairs
) -> Floats:
    """z^{t+1} (E, d), (17): soft thresholding on the given edges, the others stay."""
    old = state.z[pairs]
    aim = (rho * _apart(state.x, edges, pairs) + state.muh[pairs] + eta * old) / (rho + eta)
    z = state.z.copy(order="K")
    z[pairs] = soft(aim, lam * edges.w[pairs] / (rho + eta))
    return z


def duals(
    state: PdmmState, edges: Edges, rho: float, tau: float, nu: float, pairs: Pairs
) -> tuple[Floats, Floats]:
    """mu (18) and muh (19) on the given edges, from x^{t+1} and z^{t+1} in the state."""
    mu, muh = state.mu.copy(order="K"), state.muh.copy(order="K")
    broken = _apart(state.x, edges, pairs) - state.z[pairs]
    mu[pairs] += tau * rho * broken
    muh[pairs] = mu[pairs] - nu * rho * broken
    return mu, muh


def _apart(x: Floats, edges: Edges, pairs: Pairs) -> Floats:
    """x_i - x_j on the given edges."""
    if isinstance(pairs, slice):
        return edges.differences(x)[pairs]
    return np.asarray(x[edges.i[pairs]] - x[edges.j[pairs]])


def soft(v: Floats, threshold: Floats) -> Floats:
    """v max(0, 1 - t/|v|), row by row."""
    share = np.maximum(0.0, 1.0 - threshold / np.maximum(norms(v), TINY))
    return np.asarray(share[:, None] * v)


def step(
    state: S,
    solve: Solve,
    edges: Edges,
    lam: float,
    settings: Settings,
    users: Ints,
    pairs: Pairs,
) -> S:
    """One iteration: x of the users and z of the pairs from the same state, then the duals."""
    p, kappa = centres(state, edges, settings.rho, settings.eta, users)
    return absorb(state, users, solve(users, p, kappa), edges, lam, settings, pairs)


def absorb(
    state: S,
    users: Ints,
    found: Floats,
    edges: Edges,
    lam: float,
    settings: Settings,
    pairs: Pairs,
) -> S:
    """The server's half of an iteration, once the users have sent x_i^{t+1} (m, d)."""
    x = state.x.copy()
    x[users] = found
    z = update_pairs(state, edges, lam, settings.rho, settings.eta, pairs)
    moved = replace(state, x=x, z=z)
    mu, muh = duals(moved, edges, settings.rho, settings.tau, settings.nu, pairs)
    return replace(moved, mu=mu, muh=muh)


def chosen_pairs(seed: int, number: int, edges: Edges, share: float) -> Pairs:
    """The edges of round `number`: each with probability `share`, in both its orders."""
    if share >= 1:
        return slice(None)
    return np.flatnonzero(generator(seed, "pairs", number).random(len(edges)) < share)


# Watching over the run.


class Residuals(NamedTuple):
    """The residuals of a solution's conditions after an iteration.

    Parameters
    ----------
    primal : |x_i - x_j - z_ij| over all edges, relative to |x_i| and |x_j|, the way from the start.
        (Not to their difference: that is 0 where all are fused.)
    dual : rho |sum_j (x_j + z_ij)^{t+1} - (x_j + z_ij)^t| over all users, by which what they
        started from in (16) is out of date; per share that was drawn, relative to |sum_j mu_ij|.
    broken : the primal one, not relative to anything.
    """

    primal: float
    dual: float
    broken: float


def residuals(
    old: PdmmState, new: PdmmState, edges: Edges, rho: float, pairs_share: float = 1.0
) -> Residuals:
    """The residuals of one iteration."""
    apart, moved = edges.differences(new.x), new.x - old.x
    broken = float(np.linalg.norm(apart - new.z))
    sides = float(np.sqrt(edges.degrees @ np.square(new.x).sum(1)))
    late = edges.adjoint(new.z - old.z - edges.differences(moved)) + edges.degrees[:, None] * moved
    pull = float(np.linalg.norm(edges.adjoint(new.mu)))
    dual = rho * float(np.linalg.norm(late)) / pairs_share
    return Residuals(broken / max(sides, TINY), dual / max(pull, TINY), broken)


def balanced(rho: float, primal: float, dual: float, ratio: float = 2.0) -> float:
    """rho for the next round: twice or half if one residual is `ratio` times the other.

    For every `BALANCE_EVERY`-th round. mu and muh are multipliers of the constraints as they are,
    not divided by rho, so that nothing else must change with it.
    """
    if primal > ratio * dual:
        return 2 * rho
    if dual > ratio * primal:
        return rho / 2
    return rho


def guard(tau: float, reference: float, broken: float) -> tuple[float, float]:
    """tau and the reference for the next round: tau is halved if `broken` is ten times as large.

    The reference is the largest `broken` of the first rounds, in which every user was once active.
    """
    return (tau / 2, broken) if broken > 10 * reference else (tau, reference)


@dataclass(frozen=True, eq=False)
class Pdmm(PdmmState):
    """The server's half of `pdmm`: its state, and the numbers that it watches over.

    Parameters
    ----------
    rho, tau : the weight of the constraints, and the share of a whole dual step, as they are now.
    broken : the largest |x_i - x_j - z_ij| of the first rounds, which those of later ones are
        compared with; None before the first.
    """

    rho: float
    tau: float
    broken: float | None = None

    @classmethod
    def begin(cls, problem: Penalty, d: int, facts: Facts, rules: Rules) -> Pdmm:
        """All are 0, not the local models; d numbers in a model."""
        users = problem.edges.n
        rho = start_rho(facts.curvature, users) if rules.rho is None else rules.rho
        tau = default_tau(rules.p_users, rules.p_pairs) if rules.tau is None else rules.tau
        start = PdmmState.zeros(users, problem.edges, d)
        return cls(start.x, start.z, start.mu, start.muh, rho, tau)

    @property
    def models(self) -> Floats:
        """The users' models X (N, d)."""
        return self.x

    def request(self, problem: Penalty, rules: Rules, rows: Ints) -> tuple[Floats, Floats]:
        """p_i and kappa_i of (16)."""
        return centres(self, problem.edges, self.rho, rules.eta, rows)

    def after(
        self, problem: Penalty, rules: Rules, rows: Ints, x: Floats, number: int
    ) -> tuple[Pdmm, str]:
        """(17) to (19), then rho is balanced and tau guarded."""
        edges, rho = problem.edges, self.rho
        settings = Settings(rho, self.tau, rules.nu, rules.eta)
        pairs = chosen_pairs(rules.seed, number, edges, rules.p_pairs)
        after = absorb(self, rows, x, edges, problem.lam, settings, pairs)
        left = residuals(self, after, edges, rho, rules.p_pairs)
        if rules.rho is None and number % BALANCE_EVERY == 0:
            rho = balanced(rho, left.primal, left.dual)
        tau, broken = guard(self.tau, self._reference(left.broken, rules, number), left.broken)
        note = f"round {number}: the residual grew tenfold, tau is now {tau:.3g}"
        after = replace(after, rho=rho, tau=tau, broken=broken)
        return after, note if tau < self.tau else ""

    def _reference(self, broken: float, rules: Rules, number: int) -> float:
        """The residual to compare with: the largest while not every user was active once."""
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
