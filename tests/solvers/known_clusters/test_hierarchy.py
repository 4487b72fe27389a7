"""The objective (2.1) against its definition, dense matrices and (2.3)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.core.errors import ModelError
from corsage.experiments.known_clusters.objective import (
    lambda_of,
    objective_21,
    objective_23,
    penalty,
    penalty_gradient,
)
from corsage.solvers.known_clusters.hierarchy import Hierarchy, alpha_of
from tests.support.clustered_losses import Quadratics, hierarchy_of, pull_matrix

SEEDS = st.integers(0, 2**32 - 1)
D = 3


def drawn(seed, top=2.0):
    """A hierarchy with alpha_j up to `top`, and models."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 5, rng.integers(1, 5))
    alpha = rng.uniform(0, top, len(sizes))
    found = hierarchy_of(rng, sizes, even=bool(rng.integers(2)), alpha=alpha)
    return rng, found, rng.normal(size=(found.n, D))


@settings(max_examples=50, deadline=None)
@given(SEEDS)
def test_two_regularisers_as_printed_add_up_to_penalty(seed):
    _, found, theta = drawn(seed)
    printed = 0.5 * np.einsum("id,ij,jd", theta, pull_matrix(found), theta)
    scale = float(found.gamma @ np.square(theta).sum(1))
    assert penalty(theta, found) == pytest.approx(printed, abs=1e-14 * scale)


@settings(max_examples=50, deadline=None)
@given(SEEDS)
def test_gradient_is_that_of_penalty_though_the_means_move(seed):
    _, found, theta = drawn(seed)
    dense = pull_matrix(found) @ theta
    assert np.allclose(penalty_gradient(theta, found), dense, rtol=0, atol=1e-13)


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_penalty_is_convex_and_smooth_for_every_alpha(seed):
    _, found, _ = drawn(seed, top=4.0)
    eigen = np.linalg.eigvalsh(pull_matrix(found))
    bound = (found.strongest * np.maximum(found.alpha, 1)).max()
    assert eigen[0] > -1e-12 and eigen[-1] <= bound * (1 + 1e-12)


def test_middle_weighs_clusters_by_alpha_and_total():
    """The last form of (2.2); the first one is another number unless all G_j are the same."""
    found = Hierarchy(np.array([0, 1, 1]), np.array([1.0, 2.0, 4.0]), np.array([0.5, 0.25]))
    theta = np.array([[1.0], [3.0], [6.0]])
    centres, middle = found.means(theta)
    assert np.allclose(centres, [[1.0], [5.0]])
    assert middle == pytest.approx((0.5 * 1 * 1 + 0.25 * 6 * 5) / (0.5 + 0.25 * 6))
    assert abs(middle - (0.5 * 1 + 0.25 * 5) / 0.75) > 1
    level = Hierarchy(found.cluster, np.array([6.0, 2.0, 4.0]), found.alpha)
    assert level.means(theta)[1] == pytest.approx((0.5 * 1 + 0.25 * 5) / 0.75)


def test_what_has_no_weight_is_a_plain_mean_and_costs_nothing():
    """alpha = 0: the middle is the G-weighted mean; gamma = 0 in a cluster: its plain mean."""
    theta = np.array([[1.0], [3.0], [6.0]])
    apart = Hierarchy(np.array([0, 1, 1]), np.array([1.0, 2.0, 4.0]), np.zeros(2))
    assert apart.means(theta)[1] == pytest.approx((1 + 6 + 24) / 7)
    assert penalty(theta, apart) == pytest.approx(0.5 * (2 * 4 + 4 * 1))
    free = Hierarchy(np.array([0, 1, 1]), np.array([1.0, 0.0, 0.0]), np.ones(2))
    assert free.means(theta)[0] == pytest.approx(np.array([[1.0], [4.5]]))
    assert penalty(theta, free) == 0 and not penalty_gradient(theta, free).any()
    alone = Hierarchy(np.array([0, 1, 1]), np.zeros(3), np.ones(2))
    assert alone.means(theta)[1] == pytest.approx((1 + 4.5) / 2)


@settings(max_examples=50, deadline=None)
@given(SEEDS)
def test_lambda_and_alpha_are_each_others_inverse(seed):
    rng = np.random.default_rng(seed)
    lam = np.concatenate([rng.uniform(0, 10, 4), [0.0, np.inf]])
    totals = rng.uniform(0.1, 10, 6)
    alpha = alpha_of(lam, totals)
    assert alpha[4] == 0 and alpha[5] == 1 and ((alpha >= 0) & (alpha <= 1)).all()
    assert np.allclose(lambda_of(alpha, totals), lam, rtol=1e-13)


def test_alpha_beyond_1_and_negative_lambda_are_refused():
    with pytest.raises(ModelError, match="lower alpha"):
        lambda_of([0.5, 1.01], [1.0, 1.0])
    with pytest.raises(ModelError, match="at least 0"):
        alpha_of([-0.1], [1.0])


def minimum_23(losses, gamma, lam, cluster):
    """argmin of (2.3) over theta, w, wbar by a dense solve; w_j is wbar where lambda_j = inf."""
    n, d, k = losses.n, losses.d, len(lam)
    place = [n + j if np.isfinite(lam[j]) else n + k for j in range(k)]
    dense = np.zeros((n + k + 1, n + k + 1))
    for i in range(n):
        gap = np.zeros(n + k + 1)
        gap[i], gap[place[cluster[i]]] = 1, -1
        dense += gamma[i] * np.outer(gap, gap)
    for j in range(k):
        gap = np.zeros(n + k + 1)
        gap[n + j], gap[n + k] = 1, -1
        dense += (lam[j] if np.isfinite(lam[j]) else 1.0) * np.outer(gap, gap)
    whole = np.kron(dense, np.eye(d))
    whole[: n * d, : n * d] += losses.hessian()
    right = np.concatenate([losses.mean_b.reshape(-1), np.zeros((k + 1) * d)])
    found = np.linalg.solve(whole, right).reshape(n + k + 1, d)
    return found[:n], found[n : n + k], found[-1]


@pytest.mark.parametrize("infinite", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_21_and_23_have_one_minimiser_and_one_minimum(seed, infinite):
    """Proposition 2.2, with clusters and gamma_i that differ."""
    rng = np.random.default_rng(seed)
    found = hierarchy_of(rng, [1, 3, 5], even=False)
    losses = Quadratics(rng, found.n, D)
    lam = rng.uniform(0.2, 5, 3)
    if infinite:
        lam[1:] = np.inf
    pulled = Hierarchy(found.cluster, found.gamma, alpha_of(lam, found.totals))
    theta, w, wbar = minimum_23(losses, found.gamma, lam, found.cluster)
    best = losses.minimiser(pulled)
    assert np.allclose(best, theta, rtol=0, atol=1e-12)
    least = objective_21(losses.value(best), best, pulled)
    other = objective_23(losses.value(theta), theta, w, wbar, found.gamma, lam, found.cluster)
    assert least == pytest.approx(other, rel=1e-12)
    assert np.allclose(lambda_of(pulled.alpha, pulled.totals), lam)
    rest = losses.gradient(best, np.arange(found.n)) + penalty_gradient(best, pulled)
    assert np.abs(rest).max() < 1e-12


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_21_is_23_minimised_over_w(seed):
    """At any theta: w solves a k x k system; F_MTL there is F, and more elsewhere."""
    rng, found, theta = drawn(seed, top=0.95)
    lam = lambda_of(found.alpha, found.totals)
    if not lam.any():
        return
    centres, middle = found.means(theta)
    w = (found.totals[:, None] * centres + lam[:, None] * middle) / (found.totals + lam)[:, None]
    losses = rng.normal(size=found.n)
    args = (found.gamma, lam, found.cluster)
    least = objective_23(losses, theta, w, middle, *args)
    assert least == pytest.approx(objective_21(losses, theta, found), rel=1e-11, abs=1e-11)
    shift = 0.1 * rng.normal(size=w.shape)
    assert objective_23(losses, theta, w + shift, middle, *args) > least


def test_infinite_lambda_forbids_a_gap():
    args = (np.ones(1), np.array([np.inf]), np.zeros(1, np.int64))
    theta, w = np.ones((1, 1)), np.ones((1, 1))
    assert objective_23(np.zeros(1), theta, w, np.zeros(1), *args) == np.inf
    assert objective_23(np.zeros(1), theta, w, np.ones(1), *args) == 0


def test_members_and_sums_of_users_in_any_order():
    found = Hierarchy(np.array([2, 0, 1, 0, 2]), np.arange(1.0, 6.0), np.ones(3))
    assert [found.members(j).tolist() for j in range(3)] == [[1, 3], [2], [0, 4]]
    assert found.totals.tolist() == [6, 3, 6] and found.strongest.tolist() == [4, 3, 5]
    assert not found.even and Hierarchy(found.cluster, np.ones(5), found.alpha).even
    assert np.allclose(found.shares, [1 / 6, 2 / 6, 1, 4 / 6, 5 / 6])


def test_float32_models_have_float32_gradients_and_float64_means():
    _, found, theta = drawn(3)
    small = theta.astype(np.float32)
    assert penalty_gradient(small, found).dtype == np.float32
    assert np.allclose(penalty_gradient(small, found), penalty_gradient(theta, found), atol=1e-5)
    assert np.allclose(found.means(small)[0], found.means(theta)[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("cluster", "gamma", "alpha", "message"),
    [
        ([0, 2], [1, 1], [1, 1, 1], "numbered 0 to 2"),
        ([0, 1], [1, -1], [1, 1], "gamma must be finite"),
        ([0, 1], [1, 1], [1, np.nan], "alpha must be finite"),
        ([0, 1], [1], [1, 1], "one gamma a user"),
    ],
)
def test_bad_hierarchies_are_refused(cluster, gamma, alpha, message):
    with pytest.raises(ModelError, match=message):
        Hierarchy(np.array(cluster), np.array(gamma), np.array(alpha))
