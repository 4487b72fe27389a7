"""The baselines: formulas as the paper prints them, cross-validation by hand, James and Stein."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.core.seeding import user_keys
from corsage.experiments.known_clusters.pooling import (
    cross_validated,
    fold_sums,
    james_stein,
    local,
    mean_shrunk,
    single,
    single_cluster,
    unbiased,
)
from corsage.solvers.known_clusters.folds import SINGLE_CENTRE_GRID, keyed, sums_in
from corsage.solvers.known_clusters.mixed_model import ClusterSums, centres, personal

SEEDS = st.integers(0, 2**32 - 1)
DIM = 3


def draw(seed, sizes):
    """Flat records of users around 1, and their sums."""
    rng = np.random.default_rng(seed)
    user = np.repeat(np.arange(len(sizes)), sizes)
    theta = 1 + rng.standard_normal((len(sizes), DIM))
    x = rng.standard_normal((len(user), DIM))
    y = np.sum(x * theta[user], axis=1) + rng.standard_normal(len(user))
    a = np.stack([x[user == i].T @ x[user == i] for i in range(len(sizes))])
    b = np.stack([x[user == i].T @ y[user == i] for i in range(len(sizes))])
    return x, y, user, a, b


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_baselines_are_least_squares_of_what_they_pool(seed):
    x, y, user, a, b = draw(seed, [1, 2, 3, 4, 9])
    assert single(a, b) == pytest.approx(np.linalg.lstsq(x, y)[0], abs=1e-8)
    for i, own in enumerate(local(a, b)):
        shortest = np.linalg.pinv(x[user == i]) @ y[user == i]
        assert own == pytest.approx(shortest, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("strength", [0.01, 0.7, 50.0])
def test_single_cluster_is_as_section_6_prints_it(strength):
    _, _, _, a, b = draw(1, [1, 2, 3, 4, 9])
    eye, n = np.eye(DIM), len(a)
    s = np.linalg.inv(a + strength * eye)
    alone = a @ local(a, b)[..., None]
    middle = np.linalg.inv(eye - strength / n * s.sum(0)) @ (s @ alone).mean(0)
    expected = (s @ (alone + strength * middle))[..., 0]
    assert single_cluster(a, b, strength) == pytest.approx(expected, rel=1e-8)


def test_single_cluster_is_one_of_the_known_clusters():
    _, _, _, a, b = draw(2, [2] * 6)
    sums = ClusterSums.of(a, b, 0.4, np.arange(6) % 2, 2)
    w, wbar = centres(sums.P, sums.q, np.inf)
    tied = personal(a, b, 0.4, np.broadcast_to(wbar, b.shape))
    assert w == pytest.approx(np.stack([wbar, wbar]))
    assert single_cluster(a, b, 0.4) == pytest.approx(tied)


# Cross-validation.


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.lists(st.integers(0, 12), min_size=1, max_size=8))
def test_records_are_dealt_over_the_folds(seed, sizes):
    x, y, user, a, b = draw(seed, sizes)
    order = np.random.default_rng(seed).permutation(len(y))
    held = fold_sums(x[order], y[order], user[order], len(sizes), seed)
    assert held.a.sum(0) == pytest.approx(a) and held.b.sum(0) == pytest.approx(b)
    squares = np.bincount(user, y * y, len(sizes))
    assert held.yy.sum(0) == pytest.approx(squares)
    ones = fold_sums(np.ones((len(y), 1)), y, user, len(sizes), seed).a[..., 0, 0]
    for size, counts in zip(sizes, ones.T, strict=True):
        assert sorted(counts) == sorted([(size + f) // 5 for f in range(5)])


def test_users_who_deal_for_themselves_have_the_same_folds_in_any_company():
    x, y, _, a, _ = draw(0, [3, 7, 12])
    counts, keys = np.array([3, 7, 12]), user_keys(0, "folds", ["a", "b", "c"])
    held = sums_in(x, y, *keyed(counts, keys))
    assert held.a.sum(0) == pytest.approx(a)
    ones = sums_in(np.ones((22, 1)), y, *keyed(counts, keys)).a[..., 0, 0]
    for size, own in zip(counts, ones.T, strict=True):
        assert sorted(own) == sorted([(size + f) // 5 for f in range(5)])
    alone = sums_in(x[3:10], y[3:10], *keyed(counts[1:2], keys[1:2]))
    assert alone.a[:, 0] == pytest.approx(held.a[:, 1], abs=1e-12)
    assert [part.sum() for part, _ in held.rest] == pytest.approx(
        [held.a.sum() - own.sum() for own in held.a]
    )


def test_users_with_one_record_are_in_all_folds():
    x, y, user, *_ = draw(0, [1] * 200)
    counts = fold_sums(np.ones((200, 1)), y, user, 200, 0).a[..., 0, 0].sum(1)
    assert counts.min() > 20
    again, other = fold_sums(x, y, user, 200, 0), fold_sums(x, y, user, 200, 1)
    assert (again.a == fold_sums(x, y, user, 200, 0).a).all() and (again.a != other.a).any()


def test_cross_validation_takes_the_least_error_on_records_left_out():
    x, y, user, *_ = draw(3, [4, 7, 1, 12, 5, 5])
    held = fold_sums(x, y, user, 6, 3)
    errors = {}
    for strength in SINGLE_CENTRE_GRID:
        total = 0.0
        for f in range(5):
            rest = [g for g in range(5) if g != f]
            theta = single_cluster(held.a[rest].sum(0), held.b[rest].sum(0), strength)
            # Which records are in the fold is seen from their sums only: expand the square.
            for i in range(6):
                total += held.yy[f, i] - 2 * theta[i] @ held.b[f, i]
                total += theta[i] @ held.a[f, i] @ theta[i]
        errors[strength] = total
    best = cross_validated(held, SINGLE_CENTRE_GRID.tolist(), single_cluster)
    assert best == min(errors, key=errors.__getitem__)
    assert len(SINGLE_CENTRE_GRID) == 20 and SINGLE_CENTRE_GRID[[0, -1]].tolist() == [0.01, 2]


def test_cross_validation_finds_the_right_strength():
    """Noise 1, users with variance 1 around one centre: 1 is best."""
    rng = np.random.default_rng(5)
    n, m = 400, 5
    theta = rng.standard_normal((n, DIM))
    user = np.repeat(np.arange(n), m)
    x = rng.standard_normal((n * m, DIM))
    y = np.sum(x * theta[user], axis=1) + rng.standard_normal(n * m)
    held = fold_sums(x, y, user, n, 5)
    assert cross_validated(held, [0.01, 0.1, 1.0, 10.0, 100.0], single_cluster) == 1.0


# James and Stein.


def test_positive_part():
    y = np.array([[3.0, 4.0, 0.0], [0.1, 0.0, 0.0], [0.0, 0.0, 0.0]])
    found = james_stein(y, 2.0)
    assert found[0] == pytest.approx((1 - 2 / 25) * y[0])
    assert not found[1:].any()
    assert (james_stein(y[:, :2]) == y[:, :2]).all()


@pytest.mark.parametrize("n", [2, 7])
def test_unbiased_weights_are_those_of_the_best_predictor(n):
    y = np.random.default_rng(n).standard_normal((n, DIM))
    a = np.broadcast_to(np.eye(DIM), (n, DIM, DIM))
    assert unbiased(y) == pytest.approx(single_cluster(a, y, 1.0))
    others = (y.sum(0) - y) / (n - 1)
    printed = (n - 1) / (2 * n) * y + (n + 1) / (2 * n) * others
    assert np.abs(printed - unbiased(y)).max() > 0.01


def test_shrinking_the_mean_gains_next_to_nothing():
    """(d-2)(n-1)/(2n^2) of a squared error of about d/2, where the mean is 0; less elsewhere."""
    rng, d = np.random.default_rng(0), 10
    for n, runs in ((4, 20_000), (16, 5_000), (64, 1_000)):
        gains = []
        for _ in range(runs):
            theta = rng.standard_normal((n, d))
            y = theta + rng.standard_normal((n, d))
            before, after = (np.square(est - theta).sum(1) for est in (unbiased(y), mean_shrunk(y)))
            gains.append(np.mean(before - after))
        spread = np.std(gains) / runs**0.5
        most = (d - 2) * (n - 1) / (2 * n * n)
        # The positive part adds to what is exact for James and Stein's own.
        assert most - 4 * spread < np.mean(gains) < 1.4 * most + 4 * spread
        assert np.mean(gains) < d / n
