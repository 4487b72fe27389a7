"""Graphs between users, and the Newton systems on them."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.core.errors import DataError
from corsage.solvers.convex_clustering.exact import newton_system
from corsage.solvers.convex_clustering.exact.costs import LossCosts
from corsage.solvers.convex_clustering.exact.edges import Edges, norms
from corsage.solvers.convex_clustering.exact.sparse_factor import Band
from corsage.solvers.convex_clustering.exact.sum_of_norms import fit
from tests.support.convex_problems import blobs, by_cvxpy, random, weighted
from tests.support.points import points

SEEDS = st.integers(0, 2**32 - 1)


def test_graph_of_neighbours():
    p = random(0).normal(size=(40, 3))
    edges = Edges.knn(p, 5, decay=0.7)
    far = np.square(p[:, None] - p[None]).sum(-1)
    near = far <= np.sort(far, 1)[:, 5:6]
    expected = np.argwhere(np.triu(near | near.T, 1))
    np.testing.assert_array_equal(np.c_[edges.i, edges.j], expected)
    np.testing.assert_allclose(edges.w, np.exp(-0.7 * far[edges.i, edges.j]))


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_sums_over_edges(seed):
    rng, edges = random(seed), weighted(seed, 10, 0.5)
    b = np.zeros((len(edges), 10))
    b[np.arange(len(edges)), edges.i], b[np.arange(len(edges)), edges.j] = 1, -1
    x, mu = rng.normal(size=(10, 3)), rng.normal(size=(len(edges), 3))
    np.testing.assert_allclose(edges.differences(x), b @ x)
    np.testing.assert_allclose(edges.adjoint(mu), b.T @ mu)
    need = edges.adjoint(mu)
    flow = edges.carry(need)
    np.testing.assert_allclose(edges.adjoint(flow), need, atol=1e-8)
    length = (flow / edges.w[:, None]) ** 2
    assert length.sum() <= ((mu / edges.w[:, None]) ** 2).sum() * (1 + 1e-9)


@pytest.mark.filterwarnings("error")
def test_a_need_that_is_rounding_and_adds_up_to_nothing_is_carried_by_no_more():
    """Conjugate gradients rise without end where the system has no solution."""
    edges = Edges(np.array([2, 2, 4]), np.array([4, 5, 5]), np.ones(3), 6)
    need = np.zeros((6, 3))
    need[2], need[4] = [-3.2e-17, 0, -9.3e-18], [7.9e-17, 5.6e-17, 4.6e-17]
    need[5] = [-4.6e-17, -5.6e-17, 0]
    assert np.abs(edges.carry(need)).max() < 1e-15


@pytest.mark.parametrize(
    ("i", "j", "w", "words"),
    [
        ([1], [0], [1.0], "i < j"),
        ([0], [3], [1.0], "i < j"),
        ([0, 0], [1, 1], [1.0, 1.0], "twice"),
        ([0], [1], [0.0], "positive"),
        ([0], [1, 2], [1.0], "length"),
    ],
)
def test_graphs_that_are_refused(i, j, w, words):
    with pytest.raises(DataError, match=words):
        Edges(np.array(i), np.array(j), np.array(w), 3)


@pytest.mark.parametrize("kind", ["sparse", "band", "iterative"])
def test_other_solutions_of_the_newton_system_are_those_of_the_dense_one(kind, monkeypatch):
    narrow(kind == "band", monkeypatch)
    a = blobs(groups=12, each=10, d=3)
    edges = weighted(0, len(a), 0.3) if kind == "iterative" else Edges.knn(a, 4)
    assert edges.sparse == (kind != "iterative")
    assert isinstance(edges.pattern(3), Band) == (kind == "band")
    system = random_system(edges, a)
    g = random(1).normal(size=a.shape)
    expected = system.solve(g, 1e-12)
    full = system.matrix()
    full = np.triu(full) + np.triu(full, 1).T
    np.testing.assert_allclose(full @ expected.ravel(), -g.ravel(), atol=1e-8)
    monkeypatch.setattr(newton_system, "DENSE", 0)
    np.testing.assert_allclose(system.solve(g, 1e-12), expected, atol=1e-7)
    assert fit(a, 0.05, edges).value == pytest.approx(
        by_cvxpy(lambda x: cp.sum_squares(x - a) / 2, 3, edges, 0.05)[0], rel=1e-8
    )


def narrow(band, monkeypatch):
    """All graphs are narrow enough for a band, or none is."""
    monkeypatch.setattr(
        "corsage.solvers.convex_clustering.exact.edges.QUICK", 1e12 if band else -1.0
    )
    monkeypatch.setattr("corsage.solvers.convex_clustering.exact.edges.PACE", -1.0)


@pytest.mark.parametrize("band", [False, True])
def test_flows_are_the_smallest_ones_on_a_graph_and_on_some_of_its_edges(band, monkeypatch):
    """Against least squares; on some of the edges in the order that all of them have."""
    narrow(band, monkeypatch)
    a, rng = blobs(groups=4, each=20, d=2), random(3)
    whole = Edges.knn(a, 4, decay=0.3)
    assert whole.narrow(1) == band
    for edges in (whole, whole.masked(rng.uniform(size=len(whole)) < 0.7)):
        need = edges.adjoint(rng.normal(size=(len(edges), 2)))
        b = np.zeros((edges.n, len(edges)))
        b[edges.i, np.arange(len(edges))], b[edges.j, np.arange(len(edges))] = 1, -1
        expected = edges.w[:, None] * np.linalg.lstsq(b * edges.w, need, rcond=None)[0]
        np.testing.assert_allclose(edges.carry(need), expected, atol=1e-8)
        np.testing.assert_allclose(edges.carry(need, times=1), expected, atol=1e-4)


@pytest.mark.parametrize("band", [False, True])
def test_a_matrix_that_is_singular_has_no_factor(band, monkeypatch):
    narrow(band, monkeypatch)
    a = blobs(groups=3, each=20, d=2)
    edges = Edges.knn(a, 3)
    cross, own = np.zeros((len(edges), 2, 2)), np.tile(np.eye(2), (edges.n, 1, 1))
    g = random(0).normal(size=a.shape)
    solve = edges.pattern(2).factored(cross, own)
    assert solve is not None
    np.testing.assert_allclose(solve(g), g)
    assert edges.pattern(2).factored(cross, 0 * own) is None


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_pieces_by_some_edges_are_those_of_a_walk(seed):
    """Edges in any order; 0 is the piece of the first user, and so on."""
    rng, edges = random(seed), weighted(seed, 12, 0.25)
    turn = rng.permutation(len(edges))
    edges = Edges(edges.i[turn], edges.j[turn], edges.w[turn], 12)
    for mask in (None, rng.uniform(size=len(edges)) < 0.5):
        kept = np.ones(len(edges), bool) if mask is None else mask
        expected = np.arange(12)
        for _ in range(12):
            for i, j in zip(edges.i[kept], edges.j[kept], strict=True):
                expected[[i, j]] = expected[[i, j]].min()
        found = edges.components(mask)
        np.testing.assert_array_equal(np.unique(expected)[found], expected)


def random_system(edges, a):
    rng, count = random(0), len(edges)
    unit = rng.normal(size=(count, 3))
    unit /= norms(unit)[:, None]
    weight = rng.uniform(0.1, 10, count)
    share = rng.choice([0.0, 1.0], count)
    blocks = LossCosts(points(torch.from_numpy(a))).hessian(a)
    return newton_system.System(blocks, edges, weight, share * weight, unit)


@pytest.mark.parametrize("fill", [0, newton_system.MOST_FILL])
def test_a_matrix_that_rounding_made_negative_is_damped_in_the_end(fill, monkeypatch):
    monkeypatch.setattr(newton_system, "MOST_FILL", fill)  # 0: a dense factor
    edges = Edges.knn(np.arange(20.0)[:, None], 2)
    large = np.full(len(edges), 1e6)
    system = newton_system.System(
        np.zeros((20, 1, 1)), edges, large, large * (1 + 1e-9), np.ones((len(edges), 1))
    )
    assert system.factored()(np.ones((20, 1))).shape == (20, 1)
