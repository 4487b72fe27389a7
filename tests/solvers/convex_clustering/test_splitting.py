"""Douglas-Rachford: its fixed points, its rounds, and exact fusion."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.experiments.convex_clustering.problem import OPTIMA, curvature, problem, slope
from corsage.solvers.convex_clustering.exact.edges import Edges, norms
from corsage.solvers.convex_clustering.exact.sum_of_norms import fit, gap
from corsage.solvers.convex_clustering.reading import in_order
from corsage.solvers.convex_clustering.splitting import (
    DrState,
    request,
    server_prox,
    start_rho,
    update,
)
from tests.support.points import points, stepped


def round_of(losses, state, edges, lam, rho, users, relax=1.5):
    """One round; also what the users sent."""
    found = stepped(losses, users, request(state, users), rho)
    return update(state, users, found, edges, lam, rho, relax), found


def some_users(rng, n, share):
    return np.sort(rng.permutation(n)[: max(1, round(share * n))])


def run(losses, edges, lam, rho, *, share=1.0, rounds=100, relax=1.6, until=None):
    """From s = 0; until it is true."""
    rng, state = np.random.default_rng(7), DrState.zeros(losses.n, edges, losses.d)
    for number in range(1, rounds + 1):
        users = some_users(rng, losses.n, share)
        state, _ = round_of(losses, state, edges, lam, rho, users, relax)
        if until is not None and until(state):
            return state, number
    return state, rounds


def partition(y):
    """Users with exactly the same row."""
    return in_order(np.unique(y, axis=0, return_inverse=True)[1].ravel())


def objective(losses, lam, edges, x):
    apart = norms(edges.differences(x))
    return float(losses.value(torch.from_numpy(x)).sum()) + lam * float(edges.w @ apart)


@pytest.mark.parametrize(
    ("lam", "share", "relax", "c", "rounds"),
    [
        (0.0913593, 1.0, 1.6, 1.0, 13),
        (0.01, 1.0, 1.6, 0.13, 15),
        (0.0913593, 0.5, 1.0, 1.0, 40),
        (0.01, 0.5, 1.0, 0.13, 54),
    ],
)
def test_rounds_with_the_best_rho(
    lam: float, share: float, relax: float, c: float, rounds: int
) -> None:
    """Y is within 1e-6 of the optimum after at most so many, and its duals certify it."""
    losses, _ = problem()
    edges, rho = Edges.all_pairs(losses.n), c * curvature(losses)

    def good(state):
        return abs(objective(losses, lam, edges, state.y) / OPTIMA[lam] - 1) <= 1e-6

    state, took = run(losses, edges, lam, rho, share=share, relax=relax, rounds=rounds, until=good)
    assert good(state), took
    above = objective(losses, lam, edges, state.y) - OPTIMA[lam]
    assert above <= gap(losses, state.y, state.mu, lam, edges) <= 1e-3 * OPTIMA[lam]


@pytest.mark.parametrize(
    ("lam", "share", "rounds"),
    [(0.001, 1.0, 30), (0.04, 1.0, 15), (0.0913593, 1.0, 14), (0.01, 0.2, 80)],
)
def test_the_default_rho_fits_lam(lam: float, share: float, rounds: int) -> None:
    """A certified gap of 1e-6 after at most so many rounds."""
    losses, _ = problem()
    edges = Edges.all_pairs(losses.n)

    def good(state):
        return gap(losses, state.y, state.mu, lam, edges) <= 1e-6 * OPTIMA[lam]

    rho = start_rho(curvature(losses), slope(losses), lam * (losses.n - 1))
    state, took = run(losses, edges, lam, rho, share=share, rounds=rounds, until=good)
    assert good(state), took


def test_y_has_exactly_three_models_early() -> None:
    losses, true = problem()
    edges, lam = Edges.all_pairs(losses.n), 0.0913593
    state, took = run(
        losses, edges, lam, curvature(losses),
        until=lambda now: np.array_equal(partition(now.y), true),
    )  # fmt: skip
    assert took <= 12 and np.array_equal(partition(state.y), true)


@given(st.integers(0, 2**32 - 1), st.floats(0.2, 3), st.floats(0.5, 1.9))
@settings(max_examples=25, deadline=None)
def test_the_solution_is_a_fixed_point(seed: int, rho: float, relax: float) -> None:
    """s = x + sum_j mu_ij/rho stays, whoever takes part; also under another rho."""
    rng = np.random.default_rng(seed)
    losses = points(torch.from_numpy(rng.normal(size=(7, 2))), 0.9)
    edges, lam = Edges.all_pairs(7), rng.uniform(0.01, 0.4)
    solved = fit(losses, lam, edges, tolerance=1e-12)
    s = solved.x + edges.adjoint(solved.mu) / rho
    start = DrState(s, np.zeros_like(s), np.zeros((len(edges), 2)))
    state = server_prox(start, edges, lam, rho)
    np.testing.assert_allclose(state.y, solved.x, atol=1e-5)
    np.testing.assert_allclose(rho * (s - state.y), edges.adjoint(state.mu), atol=1e-5)
    assert np.all(norms(state.mu) <= lam * edges.w * (1 + 1e-9))
    users = some_users(rng, 7, 0.5)
    new, _ = round_of(losses, state, edges, lam, rho, users, relax)
    np.testing.assert_allclose(new.s, state.s, atol=1e-5)
    other = DrState(state.y + (s - state.y) / 2, state.y, state.mu)
    again = server_prox(other, edges, lam, 2 * rho)
    np.testing.assert_allclose(again.y, state.y, atol=1e-5)


def test_only_the_users_of_a_round_move() -> None:
    losses, _ = problem()
    edges, lam, users = Edges.all_pairs(losses.n), 0.01, np.array([3, 10, 59])
    state, _ = run(losses, edges, lam, 2.0, rounds=3)
    new, found = round_of(losses, state, edges, lam, 2.0, users, 1.2)
    others = np.setdiff1d(np.arange(losses.n), users)
    np.testing.assert_array_equal(new.s[others], state.s[others])
    moved = state.s[users] + 1.2 * (found - state.y[users])
    np.testing.assert_allclose(new.s[users], moved, atol=1e-14)
    np.testing.assert_allclose(request(state, users), 2 * state.y[users] - state.s[users])
