"""Recovery: the theorems' bounds, the flow test and the window, against solved problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.experiments.convex_clustering.problem import problem
from corsage.solvers.convex_clustering.exact.certificate import Problem
from corsage.solvers.convex_clustering.exact.costs import LossCosts
from corsage.solvers.convex_clustering.exact.edges import Edges, norms
from corsage.solvers.convex_clustering.exact.merged import Merged
from corsage.solvers.convex_clustering.exact.partition import carried, passes, proved, reduced
from corsage.solvers.convex_clustering.exact.sum_of_norms import costs_of, fit, problem_of
from corsage.solvers.convex_clustering.reading import apart, fused, of_each
from corsage.solvers.convex_clustering.recovery import (
    necessary,
    theorem1,
    theorem2,
    window,
    windows,
)
from tests.support.convex_problems import by_cvxpy
from tests.support.points import points

SEEDS = st.integers(0, 2**32 - 1)
MANY = settings(max_examples=20, deadline=None)
IN = 0.0913593


@pytest.fixture(scope="module")
def ellipses():
    losses, true = problem()
    return losses, true, Edges.all_pairs(losses.n)


def groups(seed, sizes=(4, 3, 5), spread=0.3):
    """Points around three corners, their losses and their corners."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    corners = np.array([[0.0, 0.0], [4.0, 0.5], [1.0, 5.0]])
    a = corners[labels] + spread * rng.normal(size=(len(labels), 2))
    return a, points(torch.from_numpy(a), 2.5), labels


def solved(losses, labels, lam, edges):
    """A solution of (5), the clusters' models, and the problem."""
    problem = Problem(LossCosts(losses), edges, lam)
    found = reduced(problem, labels)
    return found, of_each(found.x, labels), problem


def test_bounds_of_the_ellipses(ellipses) -> None:
    losses, true, edges = ellipses
    w = solved(losses, true, IN, edges)[1]
    assert theorem1(losses, true, w) == pytest.approx(0.158, abs=5e-4)
    assert theorem2(losses, true, w) == pytest.approx(0.0459, abs=5e-5)
    assert necessary(losses, true, w) <= IN


def test_window_of_the_ellipses(ellipses) -> None:
    losses, true, edges = ellipses
    found = window(losses, true, IN, edges)
    assert found == pytest.approx((0.0906391, 0.0920795), rel=5e-5)
    assert window(losses, true, 0.1, edges) is None
    for lam, inside in ((0.0905, False), (0.0907, True), (0.092, True), (0.0922, False)):
        found, _, problem = solved(losses, true, lam, edges)
        assert passes(problem, true, found.x) is inside
        labels = fit(losses, lam, tolerance=1e-11).labels
        assert np.array_equal(labels, true) is inside


def test_reduced_problem_is_5(ellipses) -> None:
    """Against the whole problem in the window, and its optimality conditions (7) and (8)."""
    losses, true, edges = ellipses
    found, w, _ = solved(losses, true, IN, edges)
    np.testing.assert_allclose(found.x, fit(losses, IN).x, atol=1e-5)
    g = Merged(losses, true).gradient(torch.from_numpy(w)).numpy() / 20
    for k in range(3):
        away = w[k] - np.delete(w, k, axis=0)
        pull = 20 * (away / norms(away)[:, None]).sum(0)
        np.testing.assert_allclose(g[k] + IN * pull, 0, atol=1e-8)


@given(SEEDS, st.floats(0.01, 1.0))
@MANY
def test_theorems_hold_and_the_flow_test_is_exact(seed: int, lam: float) -> None:
    """Theorem 1 implies the flow test, the flow test what `fit` finds, and all the bound below."""
    _, losses, labels = groups(seed)
    edges = Edges.all_pairs(losses.n)
    found, w, problem = solved(losses, labels, lam, edges)
    mu, left = carried(problem, found)
    if lam >= theorem1(losses, labels, w):
        assert left is None
    if lam < theorem2(losses, labels, w):
        assert apart(found.x, labels)
    if lam < necessary(losses, labels, w) * (1 - 1e-6):
        assert left is not None
    whole = fit(losses, lam, edges, tolerance=1e-12)
    away = float(np.abs(whole.x - found.x).max())
    assert away < 1e-4 if left is None else away > 1e-9
    assert (norms(mu) <= lam * edges.w * (1 + 1e-7)).all()
    if left is None:
        v = edges.adjoint(mu)
        gradient = losses.gradient(torch.from_numpy(found.x)).numpy()
        np.testing.assert_allclose(gradient, -v, atol=1e-5)


def test_flow_test_is_the_smallest_largest_flow_by_cvxpy() -> None:
    """The partition is a solution iff some flow inside has |mu_ij| <= lam; also with weights."""
    rng = np.random.default_rng(2)
    _, losses, labels = groups(2)
    i, j = np.triu_indices(losses.n, 1)
    keep = (rng.random(len(i)) < 0.8) | (j == i + 1)
    edges = Edges(i[keep], j[keep], rng.uniform(0.5, 2, keep.sum()), losses.n)
    for lam in np.geomspace(0.02, 0.5, 9).tolist():
        found, _, problem = solved(losses, labels, lam, edges)
        q = -(losses.gradient(torch.from_numpy(found.x)).numpy() + edges.adjoint(found.across))
        inside = np.flatnonzero(labels[edges.i] == labels[edges.j])
        incidence = np.zeros((losses.n, len(inside)))
        incidence[edges.i[inside], np.arange(len(inside))] = 1
        incidence[edges.j[inside], np.arange(len(inside))] = -1
        mu = cp.Variable((len(inside), 2))
        room = cp.max(cp.multiply(1 / edges.w[inside], cp.norm(mu, axis=1)))
        least = cp.Problem(cp.Minimize(room), [incidence @ mu == q]).solve(solver="CLARABEL")
        assert (carried(problem, found)[1] is None) is (least <= lam)


@pytest.mark.parametrize(("lam", "count"), [(0.0906, 22), (0.09065, 3), (0.09207, 3), (0.0921, 2)])
def test_clusters_are_proved_where_a_small_gap_has_others(ellipses, lam, count) -> None:
    losses, true, edges = ellipses
    solution = fit(losses, lam, edges)
    assert solution.certified and solution.partition_certified is None
    found = proved(losses, solution, edges)
    assert found.partition_certified and found.labels.max() + 1 == count
    assert found.relative_gap <= 1e-12
    if count == 3:
        assert (found.labels == true).all() and (solution.labels != true).any()


def partitions(n: int) -> Iterator[list[int]]:
    """All partitions of n users, as labels."""
    if n == 0:
        yield []
        return
    for labels in partitions(n - 1):
        for label in range(max(labels, default=-1) + 2):
            yield [*labels, label]


@pytest.mark.parametrize("seed", range(2))
def test_of_all_partitions_only_one_is_proved(seed: int) -> None:
    """Of five points that of CVXPY's solution to 1e-10, from whatever solution it is looked for."""
    rng = np.random.default_rng(seed)
    a, every = rng.normal(size=(5, 2)), Edges.all_pairs(5)
    edges = Edges(every.i, every.j, rng.uniform(0.2, 2, 10), 5)
    for lam in (0.12, 0.3):
        _, x = by_cvxpy(lambda x: cp.sum_squares(x - a) / 2, 2, edges, lam)
        problem, true = problem_of(costs_of(a), lam, edges), fused(x, 1e-4)
        passing = [own for own in partitions(5) if passes(problem, np.array(own), a)]
        assert passing == [true.tolist()]
        rough = fit(a, lam, edges, tolerance=1e-2)
        for start in (rough, replace(rough, x=a), replace(rough, x=np.zeros_like(a))):
            found = proved(a, start, edges)
            assert found.partition_certified and found.labels.tolist() == true.tolist()
            np.testing.assert_allclose(found.x, x, atol=1e-5)


def test_every_window_of_three_points_on_a_line() -> None:
    """The near ones meet at half their distance; then 9.5 = (1 + 2) lambda."""
    a, edges = np.array([[0.0], [1.0], [10.0]]), Edges.all_pairs(3)
    found = windows(a, [5.0, 0.1, 1.0, 2.0], edges)
    assert [own.labels.tolist() for own in found] == [[0, 1, 2], [0, 0, 1], [0, 0, 0]]
    ends = [own.low for own in found] + [own.high for own in found]
    assert ends == pytest.approx([0, 0.5, 19 / 6, 0.5, 19 / 6, np.inf], rel=3e-6)


def test_windows_of_one_cluster_and_of_none() -> None:
    _, losses, _ = groups(0, spread=0.2)
    edges, n = Edges.all_pairs(losses.n), losses.n
    together = window(losses, np.zeros(n, np.int64), 5.0, edges)
    apart = window(losses, np.arange(n), 0.02, edges)
    assert together is not None and together[1] == np.inf
    assert apart is not None and apart[0] == 0
    for lam, count in ((together[0] * 1.01, 1), (apart[1] * 0.99, n)):
        assert fused(fit(losses, lam).x).max() + 1 == count
    for lam, count in ((together[0] * 0.99, 1), (apart[1] * 1.01, n)):
        assert fused(fit(losses, lam).x).max() + 1 != count


@given(SEEDS)
@MANY
def test_merged_losses_are_sums(seed: int) -> None:
    """Value, gradient, Hessian, bounds and minimisers of a cluster, user by user."""
    rng = np.random.default_rng(seed)
    _, losses, labels = groups(seed)
    labels = rng.permutation(labels)
    merged, w = Merged(losses, labels), torch.from_numpy(rng.normal(size=(3, 2)) * 3)
    x = w[torch.from_numpy(labels)]
    for name in ("value", "gradient", "hessian"):
        total, own = getattr(merged, name)(w), getattr(losses, name)(x)
        for k in range(3):
            np.testing.assert_allclose(total[k], own[labels == k].sum(0), atol=1e-12)
    best, slope = merged.minimise(), torch.from_numpy(rng.normal(size=(3, 2)))
    np.testing.assert_allclose(merged.gradient(best), 0, atol=1e-8)
    tilted = merged.minimise(slope)
    np.testing.assert_allclose(merged.gradient(tilted), -slope, atol=1e-8)
    assert merged.smoothness().tolist() == np.bincount(labels).tolist()
