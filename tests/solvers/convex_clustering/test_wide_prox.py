"""The prox of the sum of norms in many dimensions, against CVXPY, SSNAL and its own invariants."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.core.arrays import Floats
from corsage.solvers.convex_clustering.exact.edges import norms
from corsage.solvers.convex_clustering.exact.sum_of_norms import Edges, prox
from corsage.solvers.convex_clustering.exact.wide_prox import (
    TOLERANCE,
    Search,
    distances,
    neighbours,
    wide_prox,
)
from tests.support.convex_problems import blobs, random, weighted


def value(y: Floats, s: Floats, t: float, w: Floats) -> float:
    """1/2 |Y - S|^2 + t sum_{i<j} w_ij |y_i - y_j|, pair by pair."""
    pairs = zip(*np.triu_indices(len(s), 1), strict=True)
    apart = sum(w[i, j] * np.linalg.norm(y[i] - y[j]) for i, j in pairs)
    return float(np.square(y - s).sum() / 2 + t * apart)


def points(n: int, d: int, seed: int, apart: float = 4.0) -> Floats:
    """Three groups of users, with noise of length about 1."""
    rng = np.random.default_rng(seed)
    centres = apart * rng.normal(size=(3, d)) / np.sqrt(d)
    return np.asarray(centres[np.arange(n) % 3] + rng.normal(size=(n, d)) / np.sqrt(d))


def reach(s: Floats) -> float:
    """A t that fuses all users, within a factor of 2."""
    return float(distances(s).max()) / len(s)


@pytest.mark.parametrize("share", [0.1, 0.4, 0.6, 0.8, 1.1])
@pytest.mark.parametrize("near", [0, 2])
def test_it_is_the_minimum_of_cvxpy(share: float, near: int) -> None:
    s = points(9, 4, seed=1)
    w = neighbours(s, near) if near else np.ones((9, 9))
    t = share * reach(s) * (3 if near else 1)
    y = cp.Variable(s.shape)
    pairs = [(i, j) for i in range(9) for j in range(i) if w[i, j] > 0]
    terms = [cp.norm(y[i] - y[j]) for i, j in pairs]
    problem = cp.Problem(cp.Minimize(cp.sum_squares(y - s) / 2 + t * cp.sum(cp.hstack(terms))))
    problem.solve(solver=cp.CLARABEL)
    found = wide_prox(s, t, weights=w if near else None)
    assert found.gap <= TOLERANCE
    assert value(found.rows, s, t, w) <= problem.value + 2e-8 * abs(problem.value)
    assert np.allclose(found.rows, y.value, atol=2e-4)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.02, 1.2), st.integers(3, 14))
def test_it_is_the_solution_of_ssnal_as_far_as_its_gap_says(
    seed: int, share: float, n: int
) -> None:
    """The objective is strongly convex: |Y - Y*|^2 is at most twice the gap."""
    s = points(n, 6, seed)
    t, w = share * reach(s), np.ones((n, n))
    y, _ = prox(s, t, Edges.all_pairs(n))
    found = wide_prox(s, t)
    assert found.gap <= 1e-6
    known = (found.gap + 1e-12) * value(found.rows, s, t, w)
    assert np.square(found.rows - y).sum() <= 2 * known
    assert value(found.rows, s, t, w) - value(y, s, t, w) <= known


@pytest.mark.parametrize("share", [0.2, 0.45, 0.55, 0.8, 1.1])
def test_it_fuses_the_same_users_as_ssnal(share: float) -> None:
    for seed in range(3):
        s = points(12, 20, seed, apart=8.0)
        y, _ = prox(s, share * reach(s), Edges.all_pairs(12))
        found = wide_prox(s, share * reach(s))
        i, j = np.triu_indices(12, 1)
        assert np.array_equal(found.labels[i] == found.labels[j], (y[i] == y[j]).all(axis=1))
        assert np.allclose(found.rows, y, atol=1e-9)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.8])
def test_fewer_dimensions_give_the_prox_in_all_of_them(share: float) -> None:
    s = points(20, 300, seed=3, apart=6.0)
    t = share * reach(s)
    mean = s.mean(axis=0)
    pulls = t * (1 - np.eye(20))
    whole = Search(s - mean, pulls).run(s - mean)
    found = wide_prox(s, t)
    assert np.array_equal(found.labels, whole.labels)
    assert np.abs(found.rows - (mean + whole.rows)).max() < 1e-10


def test_it_turns_with_the_points_and_keeps_their_mean() -> None:
    s = points(12, 5, seed=0)
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(5, 5)))[0]
    t = 0.5 * reach(s)
    found, turned = wide_prox(s, t), wide_prox(s @ turn + 3.0, t)
    assert np.allclose(found.rows @ turn + 3.0, turned.rows, atol=1e-9)
    assert np.allclose(found.rows.mean(axis=0), s.mean(axis=0), atol=1e-12)


def test_the_ends_of_the_path() -> None:
    s = points(12, 40, seed=2)
    none, all_of_them = wide_prox(s, 0.0), wide_prox(s, 3 * reach(s))
    assert np.array_equal(none.rows, s)
    assert len(all_of_them.models) == 1 and not all_of_them.labels.any()
    assert np.allclose(all_of_them.models[0], s.mean(axis=0), atol=1e-12)
    twins = wide_prox(np.concatenate([s, s[:2]]), 0.0)
    assert len(twins.models) == 12 and twins.labels[12:].tolist() == [0, 1]


def test_a_guess_does_not_change_the_solution() -> None:
    s = points(15, 50, seed=4, apart=8.0)
    t = 0.6 * reach(s)
    cold = wide_prox(s, t)
    assert len(cold.models) == 3
    for start in (cold.rows, np.zeros_like(s), s[::-1]):
        warm = wide_prox(s, t, start)
        assert np.array_equal(warm.labels, cold.labels)
        assert np.allclose(warm.rows, cold.rows, atol=1e-10)


def test_groups_that_are_nobodys_neighbours_do_not_meet() -> None:
    """Each fuses to its own mean, however strong the pull."""
    s = points(15, 50, seed=4, apart=8.0)
    w = neighbours(s, 2)
    assert np.array_equal(w, w.T) and not w.diagonal().any() and (w.sum(axis=1) >= 2).all()
    found = wide_prox(s, 100.0, weights=w)
    assert found.labels.tolist() == [0, 1, 2] * 5
    means = [s[k::3].mean(axis=0) for k in range(3)]
    assert np.allclose(found.models, means, atol=1e-9)


SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.sampled_from([0.01, 0.1, 0.3, 1.0]))
def test_prox_obeys_its_invariances(seed, lam):
    rng, s = random(seed), blobs(seed)
    edges = weighted(seed, len(s), 0.8)
    y, mu = prox(s, lam, edges)
    np.testing.assert_allclose(y, s - edges.adjoint(mu), atol=1e-5)  # Moreau: s = y + B' mu
    assert np.all(norms(mu) <= lam * edges.w * (1 + 1e-12))
    penalty = lam * float(edges.w @ norms(edges.differences(y)))
    assert float((mu * edges.differences(y)).sum()) == pytest.approx(penalty, abs=1e-9)
    if edges.pieces == 1:
        np.testing.assert_allclose(y.mean(0), s.mean(0), atol=1e-9)

    moved = rng.normal(size=2)
    np.testing.assert_allclose(prox(s + moved, lam, edges)[0], y + moved, atol=1e-5)
    order = rng.permutation(len(s))
    place = np.argsort(order)
    i, j = np.sort([place[edges.i], place[edges.j]], 0)
    np.testing.assert_allclose(
        prox(s[order], lam, Edges(i, j, edges.w, edges.n))[0], y[order], atol=1e-5
    )
    near = s + 1e-3 * rng.normal(size=s.shape)
    warm, cold = prox(near, lam, edges, mu)[0], prox(near, lam, edges)[0]
    np.testing.assert_allclose(warm, cold, atol=1e-5)
    assert np.linalg.norm(cold - y) <= np.linalg.norm(near - s) * (1 + 1e-6)  # nonexpansive


def test_prox_fuses_exactly():
    s = blobs(width=0.05)
    y, _ = prox(s, 0.1, Edges.all_pairs(len(s)))
    assert len(np.unique(y, axis=0)) == 3
    for k in range(3):
        assert (y[4 * k : 4 * k + 4] == y[4 * k]).all()
