"""Reading clusters: from near fusion to a certified partition, and the numbers of section V."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from corsage.experiments.convex_clustering.problem import OPTIMA, accuracy, problem, within_distance
from corsage.solvers.convex_clustering.exact.edges import Edges
from corsage.solvers.convex_clustering.exact.sum_of_norms import fit
from corsage.solvers.convex_clustering.reading import (
    candidate,
    candidates,
    fused,
    in_order,
    judged,
    read,
    refit,
)

SEEDS = st.integers(0, 2**32 - 1)
MANY = settings(max_examples=30, deadline=None)


@pytest.fixture(scope="module")
def ellipses():
    losses, true = problem()
    return losses, true, Edges.all_pairs(losses.n)


@given(SEEDS, st.floats(-9, -2))
@MANY
def test_candidate_is_found_whatever_the_size_of_the_noise(seed: int, exponent: float) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 6))
    true = in_order(rng.permutation(np.repeat(np.arange(count), rng.integers(2, 8, count))))
    corners = 5.0 * np.array([(k % 3, k // 3, k % 2) for k in range(count)])
    x = corners[true] + 10**exponent * rng.normal(size=(len(true), 3))
    assert np.array_equal(candidate(x), true)
    turned = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    assert np.array_equal(candidate(7 * x @ turned), true)


def test_candidate_respects_its_limits() -> None:
    x = np.array([[0.0], [0.001], [0.0021], [5.0], [5.001], [5.0023], [90.0]])
    assert candidate(x).tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert next(candidates(x, most=2)).tolist() == [0] * 6 + [1]
    assert candidate(np.ones((4, 2))).tolist() == candidate(np.zeros((4, 2))).tolist() == [0] * 4
    assert candidate(np.ones((1, 2))).tolist() == [0]


def test_partitions_are_numbered_as_they_appear() -> None:
    assert in_order(np.array([4, 4, 1, 0, 1])).tolist() == [0, 0, 1, 2, 1]


@pytest.mark.parametrize(
    ("lam", "clusters"), [(0.001, 60), (0.01, 60), (0.04, 43), (0.0913593, 3), (0.1, 2)]
)
def test_optima_and_clusters_along_the_path(ellipses, lam: float, clusters: int) -> None:
    losses, true, edges = ellipses
    solved = fit(losses, lam, edges)
    assert solved.value == pytest.approx(OPTIMA[lam], rel=1e-8)
    labels = fused(solved.x)
    assert labels.max() + 1 == clusters
    assert judged(losses, labels, lam, edges).exact
    assert (adjusted_rand_score(labels, true) == 1) is (clusters == 3)


def test_nearly_fused_models_are_read_and_certified(ellipses) -> None:
    """Also where they are far from fused; a wrong partition, or another lam, is not certified."""
    losses, true, edges = ellipses
    rng, lam = np.random.default_rng(0), 0.0913593
    x = fit(losses, lam, edges).x
    noisy = x + 1e-4 * rng.normal(size=x.shape)
    found = read(losses, noisy, lam, edges)
    assert found.exact and found.gap < 1e-9 and np.array_equal(found.labels, true)
    np.testing.assert_allclose(found.models[true], x, atol=1e-5)
    wrong = true.copy()
    wrong[0] = 1
    for labels, at in ((wrong, lam), (true, 0.085)):
        other = judged(losses, labels, at, edges)
        above = other.gap * fit(losses, at, edges).value
        assert not other.exact and above > 0


def test_a_user_in_the_wrong_one_of_two_near_clusters_is_not_exact(ellipses) -> None:
    """It costs 1e-8 of the objective only; nor is a partition exact that splits a cluster."""
    losses, true, edges = ellipses
    lam = 0.0913593
    gaps = []
    for user in (0, 20, 40):
        for other in range(4):
            labels = true.copy()
            labels[user] = other
            if other != true[user]:
                found = judged(losses, labels, lam, edges)
                assert not found.exact
                gaps.append(found.gap)
    assert min(gaps) < 1e-6


def test_a_certified_gap_is_never_below_the_true_one(ellipses) -> None:
    losses, true, edges = ellipses
    lam = 0.08
    best = fit(losses, lam, edges)
    other = judged(losses, true, lam, edges)
    apart = np.linalg.norm(edges.differences(other.models[true]), axis=1).sum()
    value = float(losses.value(torch.from_numpy(other.models[true])).sum()) + lam * apart
    assert 0 < value - best.value <= other.gap * value


def test_accuracies_and_distances_of_section_v(ellipses) -> None:
    losses, true, edges = ellipses
    local = losses.minimise().numpy()
    assert accuracy(local) == pytest.approx(0.8481, abs=5e-4)
    assert within_distance(local, true) == pytest.approx(3.5966, abs=5e-4)
    one = np.zeros(60, np.int64)
    assert accuracy(refit(losses, one)[one]) == pytest.approx(0.6380, abs=5e-4)
    assert accuracy(refit(losses, true)[true]) == pytest.approx(0.8882, abs=5e-4)
    solved = fit(losses, 0.01, edges).x
    assert accuracy(solved) == pytest.approx(0.8686, abs=5e-4)
    assert within_distance(solved, true) == pytest.approx(0.1682, abs=5e-4)


def test_refitting_the_recovered_clusters_gains_what_fusing_them_cost(ellipses) -> None:
    losses, _, edges = ellipses
    solved = fit(losses, 0.0913593, edges)
    labels = read(losses, solved.x, 0.0913593, edges).labels
    assert accuracy(solved.x) == pytest.approx(0.821, abs=1e-3)
    assert accuracy(refit(losses, labels)[labels]) == pytest.approx(0.888, abs=1e-3)


def test_within_distance_is_over_pairs() -> None:
    x = np.array([[0.0], [1.0], [5.0], [7.0], [9.0]])
    assert within_distance(x, np.array([0, 0, 1, 1, 1])) == pytest.approx((1 + 2 + 4 + 2) / 4)
    assert within_distance(x, np.arange(5)) == 0


@pytest.mark.parametrize(("lam", "clusters"), [(0.01, 60), (0.0913593, 3)])
def test_that_every_user_is_its_own_is_said_where_it_is_certified(
    ellipses, lam: float, clusters: int
) -> None:
    """It used to be 58 of 60, approximately."""
    losses, _, edges = ellipses
    x = fit(losses, lam, edges).x
    found = read(losses, x + 1e-9 * np.random.default_rng(0).normal(size=x.shape), lam, edges)
    assert found.exact
    assert len(np.unique(found.labels)) == clusters == len(found.models)


def test_nobody_is_alone_without_a_certificate(ellipses) -> None:
    """Models that differ, of a run that was not at its end, prove nothing."""
    losses, true, edges = ellipses
    lam = 0.0913593
    x = fit(losses, lam, edges).x + 0.3 * np.random.default_rng(0).normal(size=(losses.n, losses.d))
    assert len(np.unique(fused(x))) == losses.n
    found = read(losses, x, lam, edges)
    assert not found.exact or len(found.models) < losses.n
    assert len(np.unique(found.labels)) < losses.n
    assert len(true) == losses.n
