"""PDMM: against the conditions of each step, the users' own bookkeeping, and solved problems."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.experiments.convex_clustering.problem import OPTIMA, problem
from corsage.solvers.convex_clustering.exact.certificate import Problem, feasible
from corsage.solvers.convex_clustering.exact.costs import LossCosts
from corsage.solvers.convex_clustering.exact.edges import Edges
from corsage.solvers.convex_clustering.pdmm import (
    BALANCE_EVERY,
    PdmmState,
    Settings,
    balanced,
    centres,
    chosen_pairs,
    default_tau,
    duals,
    guard,
    residuals,
    soft,
    start_rho,
    update_pairs,
)
from tests.support.at_hand import step
from tests.support.points import points, stepped

SEEDS = st.integers(0, 2**32 - 1)
MANY = settings(max_examples=25, deadline=None)
ALL = slice(None)


def graph(rng, n):
    """Some pairs with weights, at least one a user."""
    i, j = np.triu_indices(n, 1)
    keep = (rng.random(len(i)) < 0.6) | (j == i + 1)
    return Edges(i[keep], j[keep], rng.uniform(0.2, 2.0, keep.sum()), n)


def random_state(rng, n, edges, d):
    return PdmmState(rng.normal(size=(n, d)), *(rng.normal(size=(len(edges), d)) for _ in range(3)))


def neighbours(edges, state, user):
    """(x_j, z_ij, muh_ij, mu_ij) of each edge of a user, with its own sign."""
    for e, (i, j) in enumerate(zip(edges.i, edges.j, strict=True)):
        if user == i:
            yield state.x[j], state.z[e], state.muh[e], state.mu[e]
        if user == j:
            yield state.x[i], -state.z[e], -state.muh[e], -state.mu[e]


def solver(losses):
    """What the users do, as `step` wants it."""

    def solve(users, p, kappa):
        return stepped(losses, users, p, kappa)

    return solve


@given(SEEDS)
@MANY
def test_a_users_step_minimises_16(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, d, rho, eta = 6, 3, rng.uniform(0.1, 3), rng.uniform(0, 2)
    edges = graph(rng, n)
    state, users = random_state(rng, n, edges, d), np.array([0, 2, 5])
    p, kappa = centres(state, edges, rho, eta, users)
    for user, own, weight in zip(users, p, kappa, strict=True):
        x = rng.normal(size=d)  # the gradient of (16) without f_i, at any point
        gradient = eta * (x - state.x[user])
        for other, z, muh, _ in neighbours(edges, state, user):
            gradient += muh + rho * (x - other - z)
        np.testing.assert_allclose(weight * (x - own), gradient, atol=1e-10)


@given(SEEDS)
@MANY
def test_a_pairs_step_minimises_17(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, d, lam, rho, eta = 5, 2, rng.uniform(0.1, 4), rng.uniform(0.2, 3), rng.uniform(0, 2)
    edges = graph(rng, n)
    state = random_state(rng, n, edges, d)
    pairs = np.flatnonzero(rng.random(len(edges)) < 0.7)
    z = update_pairs(state, edges, lam, rho, eta, pairs)
    others = np.setdiff1d(np.arange(len(edges)), pairs)
    np.testing.assert_array_equal(z[others], state.z[others])
    for e in pairs:
        apart = state.x[edges.i[e]] - state.x[edges.j[e]]

        def slope(v, e=e, apart=apart):
            return -state.muh[e] + rho * (v - apart) + eta * (v - state.z[e])

        size, most = np.linalg.norm(z[e]), lam * edges.w[e]
        if size == 0:
            assert np.linalg.norm(slope(z[e])) <= most + 1e-12
        else:
            np.testing.assert_allclose(slope(z[e]), -most * z[e] / size, atol=1e-10)


def test_soft_thresholding_keeps_directions_and_zero() -> None:
    v = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    np.testing.assert_allclose(soft(v, np.ones(3)), [[2.4, 3.2], [0, 0], [0, 0]])


@given(SEEDS)
@MANY
def test_duals_are_18_and_19(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, rho, tau, nu = 5, *rng.uniform(0.1, 2, 3)
    edges = graph(rng, n)
    state = random_state(rng, n, edges, 2)
    pairs = np.flatnonzero(rng.random(len(edges)) < 0.5)
    mu, muh = duals(state, edges, rho, tau, nu, pairs)
    for e in range(len(edges)):
        broken = state.x[edges.i[e]] - state.x[edges.j[e]] - state.z[e]
        if e in pairs:
            np.testing.assert_allclose(mu[e], state.mu[e] + tau * rho * broken)
            np.testing.assert_allclose(muh[e], mu[e] - nu * rho * broken)
        else:
            assert (mu[e] == state.mu[e]).all() and (muh[e] == state.muh[e]).all()


def with_bookkeeping_at_users(losses, lam, own, rounds):
    """Algorithm 1 as printed: a user keeps z_ij and muh_ij of its own ordered pairs.

    `rounds` has the users and the (N, N) ordered pairs of each round; drawn together, (i, j) and
    (j, i) are the same.
    """
    n, d = losses.n, losses.d
    x, (z, mu, muh) = np.zeros((n, d)), np.zeros((3, n, n, d))
    off = ~np.eye(n, dtype=bool)
    solve, kappa = solver(losses), np.full(n, own.rho * (n - 1) + own.eta)
    for users, pairs in rounds:
        apart = x[:, None] - x[None]
        pull = own.rho * (x[None] + z) - muh  # what user i sees of its pairs (i, j)
        p = (np.where(off[..., None], pull, 0).sum(1) + own.eta * x) / kappa[:, None]
        aim = (own.rho * apart + muh + own.eta * z) / (own.rho + own.eta)
        least = np.full(n * n, lam / (own.rho + own.eta))
        new = soft(aim.reshape(-1, d), least).reshape(aim.shape)
        x = x.copy()
        x[users] = solve(users, p[users], kappa[users])
        z = np.where(pairs[..., None], new, z)
        broken = x[:, None] - x[None] - z
        mu = np.where(pairs[..., None], mu + own.tau * own.rho * broken, mu)
        muh = np.where(pairs[..., None], mu - own.nu * own.rho * broken, muh)
        yield x


def some_users(rng, n, share):
    return np.sort(rng.permutation(n)[: max(1, round(share * n))])


@pytest.mark.parametrize(("share", "eta"), [(1.0, 0.0), (0.4, 0.0), (0.4, 0.7)])
def test_bookkeeping_at_the_users_has_the_same_iterates(share: float, eta: float) -> None:
    rng = np.random.default_rng(3)
    n, d, lam = 8, 3, 0.3
    losses = points(torch.from_numpy(rng.normal(size=(n, d))), 0.8)
    edges, own = Edges.all_pairs(n), Settings(rho=0.9, tau=0.3, nu=0.6, eta=eta)
    rounds, chosen = [], []
    for number in range(60):
        users, pairs = some_users(rng, n, share), chosen_pairs(5, number, edges, share)
        mask = np.zeros((n, n), bool)
        mask[edges.i[pairs], edges.j[pairs]] = True
        rounds.append((users, mask | mask.T))
        chosen.append((users, pairs))
    state = PdmmState.zeros(n, edges, d)
    printed = with_bookkeeping_at_users(losses, lam, own, rounds)
    for (users, pairs), x in zip(chosen, printed, strict=True):
        state = step(state, solver(losses), edges, lam, own, users, pairs)
        np.testing.assert_allclose(state.x, x, atol=1e-10)


def objective(losses, lam, edges, x):
    apart = np.linalg.norm(edges.differences(x), axis=1)
    return float(losses.value(torch.from_numpy(x)).sum()) + lam * float(edges.w @ apart)


def curvature(losses):
    """H: the mean over users of trace(hessian at 0)/d."""
    h = losses.hessian(torch.zeros(losses.n, losses.d, dtype=torch.float64))
    return float(h.diagonal(dim1=1, dim2=2).mean())


def run(losses, edges, lam, *, share=1.0, rounds=1000, rho=None, own=None, until=None):
    """PDMM with the default rules from x = 0; every state after it began, or until it is true."""
    rng, n = np.random.default_rng(7), losses.n
    rho = start_rho(curvature(losses), n) if rho is None else rho
    own = own or Settings(rho, default_tau(share, share))
    state, solve = PdmmState.zeros(n, edges, losses.d), solver(losses)
    for number in range(1, rounds + 1):
        users, pairs = some_users(rng, n, share), chosen_pairs(7, number, edges, share)
        new = step(state, solve, edges, lam, own, users, pairs)
        if number % BALANCE_EVERY == 0:
            left = residuals(state, new, edges, own.rho, share)
            own = replace(own, rho=balanced(own.rho, left.primal, left.dual))
        state = new
        if until is not None and until(state):
            return state, number
    return state, rounds


@lru_cache
def small(seed=1, n=8, lam=0.4):
    """Two groups of points, some of them fused at this lam; and P* by CVXPY."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(n, 2)) + np.where(np.arange(n) < n // 2, 0, 3)[:, None]
    edges, x = Edges.all_pairs(n), cp.Variable((n, 2))
    apart = sum(cp.norm(x[i] - x[j]) for i, j in zip(edges.i, edges.j, strict=True))
    least = cp.Problem(cp.Minimize(cp.sum_squares(x - a) / 2 + lam * apart))
    value = least.solve(solver="CLARABEL", tol_gap_abs=1e-11, tol_gap_rel=1e-11)
    return points(torch.from_numpy(a)), edges, lam, float(value), np.asarray(x.value)


@pytest.mark.parametrize(
    ("lam", "share", "rounds"),
    [
        (0.0913593, 1.0, 600),
        (0.01, 1.0, 270),
        (0.01, 0.5, 510),
        (0.01, 0.2, 1230),
    ],
)
def test_reaches_the_optimum_at_any_participation(lam: float, share: float, rounds: int) -> None:
    """Within half as many rounds again as the best fixed rho takes, with the default rules."""
    losses, _ = problem()
    edges = Edges.all_pairs(losses.n)

    def good(state):
        return abs(objective(losses, lam, edges, state.x) / OPTIMA[lam] - 1) <= 1e-6

    state, took = run(losses, edges, lam, share=share, rounds=rounds, until=good)
    assert good(state), took
    whole = Problem(LossCosts(losses), edges, lam)
    gap = whole.gap(state.x, feasible(state.mu, whole.radius))
    above = objective(losses, lam, edges, state.x) - OPTIMA[lam]
    assert above <= gap <= 2e-3 * OPTIMA[lam]


def test_solution_of_a_weighted_graph_is_that_of_cvxpy() -> None:
    rng = np.random.default_rng(4)
    n, lam = 7, 0.6
    edges, a = graph(rng, n), rng.normal(size=(n, 3))
    x = cp.Variable((n, 3))
    ends = zip(edges.i, edges.j, edges.w, strict=True)
    apart = sum(w * cp.norm(x[i] - x[j]) for i, j, w in ends)
    huber = sum(cp.huber(cp.norm(x[i] - a[i]), 0.7) / 2 for i in range(n))
    exact = {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11}
    cp.Problem(cp.Minimize(huber + lam * apart)).solve(solver="CLARABEL", **exact)
    losses = points(torch.from_numpy(a), 0.7)
    state, _ = run(losses, edges, lam, share=0.5, rounds=1000)
    np.testing.assert_allclose(state.x, x.value, atol=1e-5)


@given(SEEDS)
@MANY
def test_the_solution_stays_where_it_is(seed: int) -> None:
    """Whatever the weights, and whoever is drawn: z = x_i - x_j and muh = mu are a fixed point."""
    losses, edges, lam, _, _ = small()
    solved = solution(losses, edges, lam)
    rng = np.random.default_rng(seed)
    own = Settings(*rng.uniform(0.1, 2, 4))
    users, pairs = some_users(rng, losses.n, 0.5), chosen_pairs(seed, 1, edges, 0.5)
    new = step(solved, solver(losses), edges, lam, own, users, pairs)
    for name in ("x", "z", "mu", "muh"):
        np.testing.assert_allclose(getattr(new, name), getattr(solved, name), atol=1e-8)


@lru_cache
def solution(losses, edges, lam):
    state, _ = run(losses, edges, lam, rounds=3000)
    return state


@pytest.mark.parametrize("together", [True, False])
def test_printed_form_stalls_unless_both_orders_are_drawn_together(together: bool) -> None:
    """Drawn one by one, z_ij and -z_ji drift apart once users fuse: not the optimum any more."""
    losses, edges, lam, least, _ = small()
    n, rng = losses.n, np.random.default_rng(1)

    def rounds():
        for _ in range(1500):
            mask = rng.random((n, n)) < 0.5
            if together:
                mask = np.triu(mask, 1) | np.triu(mask, 1).T
            yield some_users(rng, n, 0.5), mask & ~np.eye(n, dtype=bool)

    iterates = list(with_bookkeeping_at_users(losses, lam, Settings(5 / n), rounds()))
    gaps = [objective(losses, lam, edges, x) / least - 1 for x in iterates[-300:]]
    if together:
        assert max(gaps) < 1e-9
    else:
        assert min(gaps) > 1e-4 and max(gaps) - min(gaps) < 1e-8


def primal_residuals(losses, edges, lam, own, guarded, rounds=200):
    """All of them, with or without the guard."""
    state, users = PdmmState.zeros(losses.n, edges, losses.d), np.arange(losses.n)
    found, reference = [], np.inf
    for number in range(rounds):
        new = step(state, solver(losses), edges, lam, own, users, ALL)
        broken = residuals(state, new, edges, own.rho).broken
        reference = broken if number == 0 else reference
        if guarded:
            tau, reference = guard(own.tau, reference, broken)
            own = replace(own, tau=tau)
        found.append(broken)
        state = new
    return found


@pytest.mark.parametrize(("tau", "nu"), [(1.9, 2 / 3), (1.0, 0.3)])
def test_the_guard_ends_a_divergence(tau: float, nu: float) -> None:
    losses, edges, lam, _, _ = small()
    own = Settings(start_rho(curvature(losses), losses.n), tau, nu)
    loose, guarded = (primal_residuals(losses, edges, lam, own, each) for each in (False, True))
    assert loose[-1] > 1e6 * loose[0]
    assert guarded[-1] < 1e-3 * guarded[0]


def test_rules() -> None:
    assert default_tau(0.5, 0.5) == default_tau(1, 0.1) == 1 / 3
    assert default_tau(0.1, 1.0) == pytest.approx(1 / 30)
    assert start_rho(6.0, 60) == pytest.approx(0.5)
    assert balanced(1.0, 3.0, 1.0) == 2 and balanced(1.0, 1.0, 3.0) == 0.5
    assert balanced(1.0, 1.5, 1.0) == balanced(1.0, 0.0, 0.0) == 1
    assert guard(0.4, 1.0, 11.0) == (0.2, 11.0) and guard(0.4, 1.0, 9.0) == (0.4, 1.0)


def test_residuals_are_0_at_a_solution_and_count_what_is_broken() -> None:
    losses, edges, lam, _, _ = small()
    there = solution(losses, edges, lam)
    left = residuals(there, there, edges, 0.7)
    assert left.primal < 1e-9 and left.dual == 0
    moved = replace(there, z=there.z + 1.0)
    left = residuals(there, moved, edges, 0.7, pairs_share=0.5)
    assert left.broken == pytest.approx(np.sqrt(2 * len(edges)))
    late = edges.n - 1 - 2 * np.arange(edges.n)  # sum_j of 1 for i < j, of -1 for i > j
    size = 0.7 * np.sqrt(2) * np.linalg.norm(late) / 0.5
    assert left.dual == pytest.approx(size / np.linalg.norm(edges.adjoint(there.mu)))


def test_drawn_pairs_are_seeded_and_as_many_as_asked() -> None:
    edges = Edges.all_pairs(60)
    drawn = [chosen_pairs(3, number, edges, 0.2) for number in range(50)]
    assert np.mean([len(own) for own in drawn]) / len(edges) == pytest.approx(0.2, abs=0.01)
    assert np.array_equal(drawn[7], chosen_pairs(3, 7, edges, 0.2))
    assert not np.array_equal(drawn[7], chosen_pairs(4, 7, edges, 0.2))
    assert chosen_pairs(3, 7, edges, 1.0) == ALL
