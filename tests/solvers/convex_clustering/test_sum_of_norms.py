"""The exact solver of the sum-of-norms problem: against CVXPY, closed forms and invariances."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.benchmarks.odd_problems import drawn
from corsage.core.errors import ConfigError, DataError, ModelError
from corsage.core.losses import LOGISTIC
from corsage.solvers.convex_clustering.exact.edges import norms
from corsage.solvers.convex_clustering.exact.sum_of_norms import (
    Edges,
    edge_terms,
    feasible,
    fit,
    gap,
    path,
    prox,
    user_terms,
)
from corsage.solvers.losses.convex import SmoothLosses
from corsage.solvers.losses.linear_losses import LinearLosses
from tests.support.convex_problems import (
    KINDS,
    N,
    blobs,
    by_cvxpy,
    ellipses,
    huber_points,
    logistic,
    quadratic,
    random,
    squared_hinge,
    weighted,
)
from tests.support.points import points

SEEDS = st.integers(0, 2**32 - 1)
ELLIPSES = {
    0.001: 10.6185398,
    0.01: 24.4998613,
    0.04: 42.1940442,
    0.0913593: 55.9970389,
    0.1: 57.1627477,
}


@pytest.mark.parametrize("lam", [0.02, 0.08, 0.3])
@pytest.mark.parametrize("kind", KINDS)
def test_optimum_is_that_of_clarabel(kind, lam):
    losses, cost = kind(3)
    graphs = [Edges.all_pairs(N), weighted(5, N)]
    for edges in graphs:
        expected, x = by_cvxpy(cost, losses.d, edges, lam)
        found = fit(losses, lam, edges, tolerance=1e-10)
        assert found.certified
        assert found.value == pytest.approx(expected, rel=1e-8, abs=1e-8)
        if kind is not huber_points:  # with straight sides there may be many optima
            np.testing.assert_allclose(found.x, x, atol=1e-3)


@pytest.mark.parametrize("kind", [quadratic, squared_hinge, logistic])
@pytest.mark.parametrize("lam", [0.05, 0.2])
def test_models_and_duals_satisfy_the_optimality_conditions(kind, lam):
    losses, _ = kind(7)
    edges = weighted(1, N)
    found = fit(losses, lam, edges, tolerance=1e-13)
    slope = losses.gradient(torch.from_numpy(found.x)).numpy()
    np.testing.assert_allclose(slope + edges.adjoint(found.mu), 0, atol=1e-6)
    z, size = edges.differences(found.x), norms(found.mu)
    assert np.all(size <= lam * edges.w * (1 + 1e-12))
    apart = norms(z) > 0
    pull = (lam * edges.w / np.where(apart, norms(z), 1))[:, None] * z
    np.testing.assert_allclose(found.mu[apart], pull[apart], atol=1e-6)
    np.testing.assert_allclose(edge_terms(z, found.mu, lam * edges.w), 0, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.sampled_from(KINDS))
def test_no_duals_make_the_gap_less_than_the_error(seed, kind):
    losses, _ = kind(2)
    rng, edges, lam = random(seed), weighted(3, N), 0.1
    best = fit(losses, lam, edges, tolerance=1e-11)
    x = best.x + rng.choice([1e-3, 0.1, 3]) * rng.normal(size=best.x.shape)
    mu = rng.choice([0, 0.5, 1]) * best.mu + rng.choice([0, 0.01, 1]) * rng.normal(
        size=best.mu.shape
    )
    cost = float(losses.value(torch.from_numpy(x)).sum())
    value = cost + lam * float((edges.w * norms(edges.differences(x))).sum())
    assert gap(losses, x, mu, lam, edges) >= (value - best.value) * (1 - 1e-9) - 1e-9


def test_gap_is_infinite_where_a_user_has_no_minimum():
    rng = random(0)
    x, y = torch.from_numpy(rng.normal(size=(8, 2))), torch.tensor([0, 1, 1, 0, 1, 1, 1, 1])
    losses = LinearLosses(x, y, [4, 4], loss=LOGISTIC, scale="mean", ridge=0.1)
    away = np.array([[0.0, 0.0, 0.1]])  # user 1 has one class: its b runs away
    assert gap(losses, np.zeros((2, 3)), away, 1.0) == np.inf
    assert np.isfinite(gap(losses, np.zeros((2, 3)), -away, 1.0))
    here, least = user_terms(losses, np.zeros((2, 3)), Edges.all_pairs(2).adjoint(away))
    assert np.isfinite(here).all() and np.isfinite(least[0]) and least[1] == -np.inf
    with pytest.raises(ModelError, match="user 1"):
        fit(losses, 0.0)
    assert fit(losses, 0.3).certified  # the other user's pull is enough


def test_duals_are_cut_to_their_balls():
    mu = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    cut = feasible(mu, np.array([1.0, 1.0, 2.0]))
    np.testing.assert_allclose(cut, [[0.6, 0.8], [0.3, 0.4], [0, 0]])


@pytest.mark.parametrize("lam", ELLIPSES)
def test_ellipses(lam):
    found = fit(ellipses(), lam, tolerance=1e-9)
    assert found.value == pytest.approx(ELLIPSES[lam], abs=1e-7)
    assert found.certified and found.relative_gap <= 1e-9
    assert found.labels.max() + 1 == {0.001: 60, 0.01: 60, 0.04: 43, 0.0913593: 3, 0.1: 2}[lam]


def test_ellipses_fuse_into_their_clusters():
    found = fit(ellipses(), 0.0913593)
    np.testing.assert_array_equal(found.labels, np.repeat(np.arange(3), 20))


def test_path_goes_both_ways_and_agrees_with_single_fits():
    losses, lams = ellipses(users=6), np.geomspace(0.5, 0.01, 7)
    for order in (lams, lams[::-1]):
        for lam, found in zip(order, path(losses, order), strict=True):
            alone = fit(losses, lam)
            assert found.certified and found.lam == lam
            assert found.value == pytest.approx(alone.value, rel=2e-8)


def test_clusters_that_fall_apart_on_the_way_up_are_those_of_cold_fits():
    """Weights of a thousand to one tear clusters apart when lam grows."""
    rng, n = np.random.default_rng(2), 120
    a = rng.normal(size=(n, 2))
    near = Edges.knn(a, 4)
    edges = Edges(near.i, near.j, np.exp(rng.uniform(-3, 3, len(near))), n)
    lams, joined, torn = np.geomspace(0.01, 3.0, 25), np.zeros(len(near), bool), 0
    for lam, found in zip(lams, path(a, lams, edges), strict=True):
        cold = fit(a, lam, edges)
        assert found.certified and found.value == pytest.approx(cold.value, rel=1e-8)
        assert np.array_equal(found.labels, cold.labels)
        fused = found.labels[edges.i] == found.labels[edges.j]
        torn, joined = torn + np.any(joined & ~fused), fused
    assert torn == 2  # or this would not be a test


def test_users_who_are_one_cluster_are_found_without_a_step():
    """Kinked costs of many numbers: their one model takes more Newton steps than 12."""
    odd = drawn(61)
    found = fit(odd.losses, odd.lam, odd.edges)
    assert found.certified and found.iterations == 0 and not found.labels.any()


def test_no_penalty_gives_local_models():
    losses, _ = squared_hinge(1)
    found = fit(losses, 0.0)
    np.testing.assert_allclose(found.x, losses.minimise().numpy())
    assert found.certified


@pytest.mark.parametrize("kind", [quadratic, squared_hinge, logistic])
def test_strong_penalty_gives_the_global_model(kind):
    losses, _ = kind(4)
    found = fit(losses, 50.0, tolerance=1e-12)
    assert (found.x == found.x[0]).all()
    total = losses.gradient(torch.from_numpy(found.x)).sum(0)
    np.testing.assert_allclose(total.numpy(), 0, atol=1e-9)


def test_two_points_in_closed_form():
    a = np.array([[0.0, 0.0], [3.0, 4.0]])
    found = fit(a, 1.0)
    np.testing.assert_allclose(found.x, [[0.6, 0.8], [2.4, 3.2]], atol=1e-9)
    np.testing.assert_allclose(found.mu, [[-0.6, -0.8]], atol=1e-9)
    np.testing.assert_allclose(fit(a, 2.6).x, [[1.5, 2.0]] * 2)


def test_identical_users_are_fused_and_one_user_is_alone():
    a = np.repeat(blobs(each=1), 3, 0)
    found = fit(a, 0.01)
    np.testing.assert_array_equal(found.labels, np.repeat(np.arange(3), 3))
    assert (fit(np.ones((5, 2)) / 3, 0.1).labels == 0).all()
    one = fit(a[:1], 1.0)
    np.testing.assert_array_equal(one.x, a[:1])
    assert one.certified and one.gap == 0


def test_pieces_of_a_graph_are_separate_problems():
    a = blobs(groups=4)
    half = Edges.all_pairs(8)
    both = Edges(np.r_[half.i, half.i + 8], np.r_[half.j, half.j + 8], np.r_[half.w, half.w], 16)
    assert both.pieces == 2
    found = fit(a, 0.1, both, tolerance=1e-12)
    parts = [fit(a[:8], 0.1, half, tolerance=1e-12), fit(a[8:], 0.1, half, tolerance=1e-12)]
    np.testing.assert_allclose(found.x, np.concatenate([p.x for p in parts]), atol=1e-7)
    assert found.value == pytest.approx(sum(p.value for p in parts))
    apart = fit(a, 100.0, both)
    np.testing.assert_allclose(apart.x, np.repeat([a[:8].mean(0), a[8:].mean(0)], 8, 0))


def test_problems_that_are_refused():
    a = blobs()
    with pytest.raises(ConfigError, match="lambda"):
        fit(a, -1.0)
    with pytest.raises(DataError, match="12 users"):
        fit(a, 1.0, Edges.all_pairs(3))
    with pytest.raises(DataError, match="start"):
        fit(a, 1.0, weighted(0, 12), start=fit(a, 1.0))
    with pytest.raises(ConfigError, match="neighbours"):
        Edges.knn(a, 12)
    with pytest.raises(ModelError, match="float64"):
        fit(points(torch.from_numpy(a).float()), 1.0)


HOSTILE = {
    "nan": (lambda a: fit(np.where(a == a[3], np.nan, a), 0.1), "row 3 .* not finite"),
    "no coordinates": (lambda a: fit(a[:, :0], 0.1), "12x0 numbers"),
    "one axis": (lambda a: fit(a[:, 0], 0.1), "N rows of d"),
    "words": (lambda a: fit(np.full((3, 2), "a"), 0.1), "no type of real numbers"),
    "complex": (lambda a: fit(a + 1j, 0.1), "no type of real numbers"),
    "ragged": (lambda a: fit([[1.0], [1.0, 2.0]], 0.1), "different lengths"),
    "large": (lambda a: fit(a * 1e200, 0.1), "scale them"),
    "small": (lambda a: fit(a * 1e-200, 0.1), "scale them"),
    "no losses": (lambda a: fit(None, 0.1), "points .* or losses are needed, not NoneType"),
    "lambda is a word": (lambda a: fit(a, "x"), "lambda='x'"),
    "lambda is a list": (lambda a: fit(a, np.ones(2)), "lambda="),
    "lambda is not a number": (lambda a: fit(a, np.nan), "lambda=nan"),
    "tolerance": (lambda a: fit(a, 0.1, tolerance=np.nan), "tolerance=nan"),
    "graph": (lambda a: fit(a, 0.1, np.ones((12, 12))), "must be Edges, not ndarray"),
    "start": (lambda a: fit(a, 0.1, start=a), "start"),
    "lambdas": (lambda a: list(path(a, 0.1)), "must be a list"),
    "lambdas with another": (lambda a: list(path(a, [0.1, -1.0])), "lambda=-1"),
    "duals": (lambda a: prox(a, 0.1, Edges.all_pairs(12), a), "duals are"),
    "models": (lambda a: gap(a, a[:3], np.zeros((66, 2)), 0.1), "models are"),
    "negative weight": (lambda a: Edges.all_pairs(12, -1.0), "positive"),
    "no weight": (lambda a: Edges.all_pairs(12, np.nan), "positive"),
    "endless weight": (lambda a: Edges.all_pairs(12, np.inf), "positive"),
    "parts of users": (lambda a: Edges(a[:1, 0], a[:1, 1], np.ones(1), 2), "whole numbers"),
    "negative users": (lambda a: Edges.all_pairs(-1), "n=-1"),
    "neighbours of nan": (lambda a: Edges.knn(a * np.nan), "row 0 .* not finite"),
    "half a neighbour": (lambda a: Edges.knn(a, 2.5), "k=2.5"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_no_problem_is_refused_in_one_line(case):
    refused, words = HOSTILE[case]
    with pytest.raises((ConfigError, DataError), match=words) as raised:
        refused(blobs())
    assert "\n" not in str(raised.value)


def test_losses_that_are_no_numbers_are_refused():
    rng = random(0)
    y = torch.tensor([0, 1] * 4)
    x = torch.from_numpy(rng.normal(size=(8, 2)))
    x[5] = torch.nan
    losses = LinearLosses(x, y, [4, 4], loss=LOGISTIC, scale="mean", ridge=0.1)
    with pytest.raises(DataError, match="user 1"):
        fit(losses, 0.1)


@pytest.mark.parametrize("kind", [quadratic, huber_points, squared_hinge, logistic])
def test_an_endless_penalty_gives_one_model_a_piece(kind):
    losses, _ = kind(4)
    found, large = fit(losses, np.inf), fit(losses, 1e3, tolerance=1e-12)
    assert found.certified and found.lam == np.inf and np.isfinite(found.mu).all()
    np.testing.assert_allclose(found.x, large.x, atol=1e-6)
    assert found.value == pytest.approx(large.value, rel=1e-8)
    gradient = losses.gradient(torch.from_numpy(found.x)).numpy()
    np.testing.assert_allclose(gradient, -Edges.all_pairs(N).adjoint(found.mu), atol=1e-6)


def test_an_endless_penalty_is_certified_however_small_the_weights_are():
    a, pairs = blobs(groups=4), Edges.all_pairs(8)
    found = fit(a[:8], np.inf, Edges(pairs.i, pairs.j, np.full(28, 1e-9), 8))
    assert found.certified and found.relative_gap <= 1e-12
    np.testing.assert_allclose(found.x, np.repeat([a[:8].mean(0)], 8, 0), atol=1e-12)


def test_an_endless_penalty_of_points_has_means_as_its_solution():
    a = blobs(groups=4)
    half = Edges.all_pairs(8)
    both = Edges(np.r_[half.i, half.i + 8], np.r_[half.j, half.j + 8], np.r_[half.w, half.w], 16)
    means = np.repeat([a[:8].mean(0), a[8:].mean(0)], 8, 0)
    found, (last, *_) = fit(a, np.inf, both), path(a, [np.inf, 0.1, 0.0], both)
    for x in (found.x, last.x, prox(a, np.inf, both)[0]):
        np.testing.assert_allclose(x, means, atol=1e-12)
    again = fit(a, 0.1, both, start=found)
    assert again.value == pytest.approx(fit(a, 0.1, both).value, rel=1e-8)
    with pytest.raises(ConfigError, match="lambda=inf"):
        gap(a, found.x, found.mu, np.inf, both)


def test_ends_of_edges_in_32_bits_are_those_of_64():
    a = blobs(each=100)
    edges = Edges.knn(a, 5)
    n = 100_000
    short = Edges(
        edges.i.astype(np.int32) + n - 400, edges.j.astype(np.int32) + n - 400, edges.w, n
    )
    assert (short.codes >= 0).all() and short.pieces == edges.pieces + n - len(a)


@pytest.mark.parametrize("seed", [0, 1])
def test_clusters_are_never_apart_by_rounding_alone(seed):
    """Of points that are all one cluster parts were 1e-13 away from it, and counted as others."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(400, 2))
    edges, lams = Edges.knn(a, 10, 0.5), np.geomspace(0.01, 30, 14)
    tight = [fit(a, lam, edges, tolerance=1e-12) for lam in lams[-6:]]
    for found in [*tight, *path(a, lams.tolist(), edges)]:
        apart = np.linalg.norm(edges.differences(found.x), axis=1)
        assert found.certified and apart[apart > 0].min(initial=1.0) > 1e-10
    assert not any(found.labels.any() for found in tight[-4:])


@pytest.mark.parametrize(("lam", "words"), [(0.0, "or lambda > 0"), (0.1, "share one; set ridge")])
def test_where_no_model_is_best_the_advice_is_one_that_can_be_taken(lam: float, words: str) -> None:
    losses = SmoothLosses(lambda i, x: torch.nn.functional.softplus(-x).sum() - 0.1 * x[0], 1, 1)
    with pytest.raises(ModelError, match=words):
        fit(losses, lam)
