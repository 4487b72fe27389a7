"""Sums of norms on graphs of few edges: the interior-point method, and graphs that are hard."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.solvers.convex_clustering.exact import interior, shrinking, solved
from corsage.solvers.convex_clustering.exact.certificate import Problem
from corsage.solvers.convex_clustering.exact.cones import Pairs, Scaling, Step, dot
from corsage.solvers.convex_clustering.exact.costs import PointCosts
from corsage.solvers.convex_clustering.exact.edges import Edges, norms
from corsage.solvers.convex_clustering.exact.finish import Finish
from corsage.solvers.convex_clustering.exact.interior import Interior, suits
from corsage.solvers.convex_clustering.exact.merged import Merged
from corsage.solvers.convex_clustering.exact.shrinking import Level
from corsage.solvers.convex_clustering.exact.solved import Rising
from corsage.solvers.convex_clustering.exact.sum_of_norms import fit, gap, path, prox
from corsage.solvers.convex_clustering.exact.wide_prox import wide_prox
from corsage.solvers.losses.convex import points
from tests.support.convex_problems import blobs, by_cvxpy, random

SEEDS = st.integers(0, 2**32 - 1)
LAMBDAS = [1e-4, 0.01, 0.05, 0.3, 3.0, 1e6]


def moons(n=300, seed=0):
    """Two half circles with noise, and their 8 nearest neighbours."""
    rng, side = random(seed), np.repeat([1, -1], n // 2)
    t = rng.uniform(0, np.pi, n)
    a = np.stack([side * np.cos(t) - side / 2, side * np.sin(t) - side / 4], 1)
    a += 0.1 * rng.normal(size=a.shape)
    return a, Edges.knn(a, 8, decay=2.0)


def minimum(a, edges, lam):
    return by_cvxpy(lambda x: cp.sum_squares(x - a) / 2, a.shape[1], edges, lam)[0]


def methods(monkeypatch):
    """Which methods ran."""
    taken = []

    def spied(name):
        own = getattr(solved, name)
        return lambda *args, **keys: taken.append(name) or own(*args, **keys)

    for name in ("Interior", "Solver"):
        spy = spied(name)
        for module in (solved, shrinking):
            monkeypatch.setattr(module, name, spy)
    return taken


@pytest.mark.parametrize("lam", LAMBDAS)
def test_optimum_is_that_of_clarabel_and_the_gap_is_never_below_the_true_one(lam, monkeypatch):
    taken, (a, edges) = methods(monkeypatch), moons()
    found, best = fit(a, lam, edges), minimum(a, edges, lam)
    assert taken == (["Interior"] if lam < 1e6 else [])
    assert found.certified and found.relative_gap <= 1e-8
    assert found.value == pytest.approx(best, rel=1e-8)
    rough = fit(a, lam, edges, tolerance=1e-2)
    for each in (rough, found):
        assert each.gap >= each.value - best - 1e-8 * best
        assert np.all(norms(each.mu) <= lam * edges.w * (1 + 1e-12))


@pytest.mark.parametrize("lam", LAMBDAS[:-1])
def test_both_methods_find_the_same_clusters(lam, monkeypatch):
    a, edges = moons()
    found = fit(a, lam, edges, tolerance=1e-10)
    monkeypatch.setattr(solved, "suits", lambda problem: False)
    other = fit(a, lam, edges, tolerance=1e-10)
    assert found.value == pytest.approx(other.value, rel=1e-9)
    np.testing.assert_allclose(found.x, other.x, atol=1e-4)
    np.testing.assert_array_equal(found.labels, other.labels)


@pytest.mark.parametrize("lam", [0.05, 0.5])
def test_merged_users_have_the_same_optimum(lam):
    """Clusters as if each were one user, on the graph that is left of theirs."""
    a, edges = moons()
    found = fit(a, lam, edges, tolerance=1e-10)
    count = int(found.labels.max()) + 1
    losses = Merged(points(torch.from_numpy(a)), found.labels)
    less = fit(losses, lam, edges.merged(found.labels, count), tolerance=1e-10)
    assert less.value == pytest.approx(found.value, rel=1e-8)
    np.testing.assert_allclose(less.x[found.labels], found.x, atol=1e-4)


def test_losses_of_other_kinds_are_solved_by_it_too(monkeypatch):
    taken, (a, edges) = methods(monkeypatch), moons()
    losses = points(torch.from_numpy(a), "huber", 0.3)
    for lam in (0.01, 0.1):
        found = fit(losses, lam, edges)
        best, _ = by_cvxpy(
            lambda x: cp.sum(cp.huber(cp.norm(x - a, 2, axis=1), 0.3)) / 2, 2, edges, lam
        )
        assert found.certified and found.value == pytest.approx(best, rel=1e-7)
    assert taken == ["Interior"] * 2


def test_pieces_of_a_graph_are_separate_problems():
    a, edges = moons(200)
    far = np.concatenate([a, a + 50.0])
    both = Edges(
        np.r_[edges.i, edges.i + 200], np.r_[edges.j, edges.j + 200], np.r_[edges.w, edges.w], 400
    )
    one, two = fit(a, 0.1, edges), fit(far, 0.1, both)
    assert two.certified and two.value == pytest.approx(2 * one.value, rel=1e-7)
    apart = fit(far, 1e5, both)
    assert apart.certified and apart.labels.max() + 1 == both.pieces == 2 * edges.pieces


def test_users_without_edges_stay_where_they_are():
    a, edges = moons(200)
    more = np.concatenate([a, [[9.0, 9.0], [-9.0, 9.0]]])
    found = fit(more, 0.1, Edges(edges.i, edges.j, edges.w, 202))
    assert found.certified
    np.testing.assert_allclose(found.x[200:], more[200:], atol=1e-9)


def test_duplicate_points_are_fused():
    a, _ = moons(100)
    twice = np.repeat(a, 3, 0)
    edges = Edges.knn(twice, 8, decay=2.0)
    for lam in (1e-3, 0.1):
        found = fit(twice, lam, edges)
        assert found.certified
        assert found.value == pytest.approx(minimum(twice, edges, lam), rel=1e-8)
        labels = found.labels.reshape(-1, 3)
        assert (labels == labels[:, :1]).all()
    same = fit(np.ones((300, 2)) / 3, 0.1, edges)
    assert same.certified and (same.labels == 0).all()


@pytest.mark.parametrize("spread", [1e4, 1e9, 1e40])
def test_weights_of_very_different_size(spread):
    a, edges = moons()
    w = np.exp(random(1).uniform(0, np.log(spread), len(edges)) - np.log(spread))
    edges = Edges(edges.i, edges.j, w, edges.n)
    found = fit(a, 0.3, edges)
    assert found.certified
    if spread < 1e5:
        assert found.value == pytest.approx(minimum(a, edges, 0.3), rel=1e-7)


@pytest.mark.parametrize("lam", [1e-300, 1e-12, 1e300])
def test_lambdas_beyond_all_bounds(lam):
    a, edges = moons()
    found = fit(a, lam, edges)
    assert np.isfinite(found.x).all() and found.value >= 0
    if lam > 1:
        assert found.certified and found.labels.max() + 1 == edges.pieces
    else:
        np.testing.assert_allclose(found.x, a, atol=1e-9)
    alone = fit(a, 0.0, edges)
    np.testing.assert_array_equal(alone.x, a)


def test_one_dimension_and_two_points():
    a = np.sort(random(0).normal(size=(300, 1)), 0)
    chain = Edges(np.arange(299), np.arange(1, 300), np.ones(299), 300)
    found = fit(a, 0.4, chain)
    assert found.certified and found.value == pytest.approx(minimum(a, chain, 0.4), rel=1e-8)
    assert (np.diff(found.x[:, 0]) >= -1e-12).all()  # an order on a line stays
    two = fit(a[[0, -1]], 0.2)
    np.testing.assert_allclose(two.x, a[[0, -1]] + [[0.2], [-0.2]])


def test_single_precision_points_are_solved_in_double():
    a, edges = moons()
    single = a.astype(np.float32)
    found, expected = fit(single, 0.1, edges), fit(single.astype(np.float64), 0.1, edges)
    assert found.certified and found.x.dtype == np.float64
    np.testing.assert_array_equal(found.x, expected.x)
    np.testing.assert_array_equal(
        prox(single, 0.1, edges)[0], prox(single.astype(float), 0.1, edges)[0]
    )


def test_prox_on_a_sparse_graph_is_exact_cold_and_warm():
    a, edges = moons()
    y, mu = prox(a, 0.05, edges)
    np.testing.assert_allclose(y, a - edges.adjoint(mu), atol=1e-6)
    near = a + 1e-3 * random(2).normal(size=a.shape)
    warm, cold = prox(near, 0.05, edges, mu)[0], prox(near, 0.05, edges)[0]
    np.testing.assert_allclose(warm, cold, atol=1e-6)


def test_points_of_many_dimensions_are_solved_in_their_span():
    rng = random(3)
    a = blobs(groups=3, each=4, d=30, width=0.05) + 7.0
    turn = np.linalg.qr(rng.normal(size=(30, 30)))[0]
    for lam in (0.05, 0.4):
        found, turned = fit(a, lam), fit(a @ turn, lam)
        assert found.certified and found.relative_gap <= 1e-8
        np.testing.assert_allclose(found.x @ turn, turned.x, atol=1e-8)
        np.testing.assert_array_equal(found.labels, turned.labels)
        assert gap(a, found.x, found.mu, lam) == pytest.approx(found.gap, abs=1e-9)
        np.testing.assert_allclose(found.x, wide_prox(a, lam).rows, atol=1e-6)


def test_paths_agree_with_single_fits_in_any_order():
    a, edges = moons()
    lams = np.geomspace(2.0, 0.01, 6)
    for order in (lams, lams[::-1], lams[[3, 0, 5, 1]]):
        for lam, found in zip(order, path(a, order, edges), strict=True):
            assert found.certified and found.lam == lam
            assert found.value == pytest.approx(fit(a, lam, edges).value, rel=2e-8)


@pytest.mark.parametrize("lam", [0.1, 0.3, 3.0])
def test_fewer_and_fewer_points_have_the_optimum_of_all(lam, monkeypatch):
    """Also where users were taken for fused that are not, from the first step on."""
    sizes, own = [], shrinking.of_clusters

    def spied(less, *rest):
        sizes.append(less.costs.n)
        return own(less, *rest)

    monkeypatch.setattr(shrinking, "of_clusters", spied)
    a, edges = moons(600)
    for near, sure in ((0.03, 0.1), (1e9, 1.0)):
        del sizes[:]
        monkeypatch.setattr(interior, "NEAR", near)
        monkeypatch.setattr(interior, "SURE", sure)
        found = fit(a, lam, edges)
        assert sizes and min(sizes) < 300
        assert found.certified and np.all(norms(found.mu) <= lam * edges.w * (1 + 1e-12))
        below = found.value - dual_value(a, edges, found.mu)
        assert below <= found.gap + 1e-12 * found.value
    monkeypatch.setattr(interior, "MUCH", 0.0)
    del sizes[:]
    assert fit(a, lam, edges).value == pytest.approx(found.value, rel=1e-8) and not sizes
    assert found.value == pytest.approx(minimum(a, edges, lam), rel=1e-8)


def test_a_partition_and_its_edges():
    """Duals of users' edges and of clusters' edges, there and back."""
    a, edges = moons()
    labels = random(0).integers(0, 20, 300)
    labels[:20] = np.arange(20)
    level, rng = Level.of(PointCosts(a), edges, labels), random(1)
    mu = rng.normal(size=(len(level.graph), 2))
    inside = rng.normal(size=(len(edges), 2))
    found = level.spread(mu, inside)
    np.testing.assert_allclose(level.gathered(found), mu, atol=1e-12)
    same = labels[edges.i] == labels[edges.j]
    np.testing.assert_array_equal(found[same], inside[same])
    total = np.zeros((20, 2))
    np.add.at(total, labels, edges.adjoint(np.where(same[:, None], 0, found)))
    np.testing.assert_allclose(total, level.graph.adjoint(mu), atol=1e-12)
    merged = edges.merged(labels, 20)
    for name in ("i", "j", "w"):
        np.testing.assert_allclose(getattr(level.graph, name), getattr(merged, name))


def dual_value(a, edges, mu):
    """The minimum over X of the Lagrangian, written out edge by edge."""
    v = np.zeros_like(a)
    for i, j, pull in zip(edges.i, edges.j, mu, strict=True):
        v[i] += pull
        v[j] -= pull
    return float((v * a).sum() - np.square(v).sum() / 2)


def test_every_lambda_of_a_path_is_certified_by_its_own_duals():
    a, edges = moons()
    lams = np.geomspace(0.01, 5.0, 20)
    for number, found in enumerate(path(a, lams, edges)):
        assert np.all(norms(found.mu) <= found.lam * edges.w * (1 + 1e-12))
        below = found.value - dual_value(a, edges, found.mu)
        assert found.relative_gap <= 1e-8 and below <= found.gap + 1e-12 * found.value
        if number % 5 == 0:
            assert found.value == pytest.approx(minimum(a, edges, found.lam), rel=1e-8)


@pytest.mark.parametrize("lam", [0.02, 0.2])
def test_clusters_of_a_path_that_are_wrong_are_taken_apart(lam, monkeypatch):
    """As if all users, or strangers, had been fused at the lam before."""
    a, edges = moons()
    colds, sizes = [], []
    own, below = solved.solved, shrinking.of_clusters
    monkeypatch.setattr(solved, "solved", lambda *args: colds.append(args) or own(*args))
    monkeypatch.setattr(
        shrinking, "of_clusters", lambda *args: sizes.append(args[0].costs.n) or below(*args)
    )
    expected = fit(a, lam, edges)
    pairs, zeros = np.repeat(np.arange(150), 2), np.zeros(300, int)
    for labels in (zeros, random(0).permutation(pairs)):
        way = Rising(PointCosts(a), edges, 1e-8)
        way.to(0.9 * lam)
        del colds[:]
        way.level = Level.of(way.costs, edges, labels)
        found = way.to(lam)
        problem = Problem(way.costs, edges, lam)
        assert problem.relative(problem.gap(found.x, found.mu), found.x) <= 1e-8
        assert problem.value(found.x) == pytest.approx(expected.value, rel=2e-8)
        alone = lam < 0.1 and labels is not zeros  # strangers fall apart into single points
        assert alone or not colds  # else nothing is begun anew
    assert max(sizes) < len(a)  # as a problem of clusters that one would be solved without end


def test_where_it_gets_stuck_the_other_method_goes_on(monkeypatch):
    taken, (a, edges) = methods(monkeypatch), moons()
    monkeypatch.setattr("corsage.solvers.convex_clustering.exact.interior.INTERIOR_STEPS", 4)
    found = fit(a, 0.1, edges)
    assert found.certified and taken == ["Interior", "Solver"]


def test_all_pairs_and_uneven_radii_are_none_of_its_problems():
    a, edges = moons()
    costs = PointCosts(a)
    assert suits(Problem(costs, edges, 0.1)) and suits(Problem(costs, edges, 1e300))
    assert not suits(Problem(costs, Edges.all_pairs(300), 0.1))
    assert not suits(Problem(costs, edges, 1e-200))


# The cones.


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.integers(1, 4))
def test_scaling_maps_one_point_of_a_pair_to_the_other(seed, d):
    """W y = W^-1 s = lambda, against 2 w w' - J written out."""
    pairs, rng = inside(seed, d)
    scaling, j = Scaling(pairs), np.diag([1.0] + [-1.0] * d)
    first = scaling.point
    for there, again in (
        (scaling.times(pairs.r, -pairs.mu), first),
        (scaling.back(pairs.t, pairs.z), first),
    ):
        for one, other in zip(there, again, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8)
    for e in range(5):
        w = np.r_[scaling.w0[e], scaling.w[:, e]]
        square = scaling.eta2[e] * (2 * np.outer(w, w) - j)
        y, s = np.r_[pairs.r[e], -pairs.mu[:, e]], np.r_[pairs.t[e], pairs.z[:, e]]
        np.testing.assert_allclose(square @ y, s, rtol=1e-7, atol=1e-8)
        v = rng.normal(size=(d, 5))
        inverse = np.linalg.inv(square[1:, 1:])
        np.testing.assert_allclose(scaling.bent(v)[:, e], inverse @ v[:, e], rtol=1e-7, atol=1e-8)


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_room_ends_at_the_border(seed):
    pairs, rng = inside(seed, 2)
    step = Step(rng.normal(size=5), rng.normal(size=(2, 5)), rng.normal(size=(2, 5)))
    way = pairs.along(step)
    room = way.room

    def least(length):
        t, z, mu = (here + length * change for here, change in (
            (pairs.t, step.t), (pairs.z, step.z), (pairs.mu, step.mu)
        ))  # fmt: skip
        return min((t - norms(z.T)).min(), (pairs.r - norms(mu.T)).min())

    assert least(0.999 * min(room, 1e3)) > 0
    assert room == np.inf or least(1.001 * room) < 0
    moved = way.at(0.5 * min(room, 1.0))
    assert way.gap(0.5 * min(room, 1.0)) == pytest.approx(float(moved.sy.sum()))
    np.testing.assert_allclose(moved.ss, moved.t**2 - dot(moved.z, moved.z), rtol=1e-9)


def inside(seed, d):
    """Five pairs inside of their cones."""
    rng = random(seed)
    z, mu = rng.normal(size=(d, 5)), rng.normal(size=(d, 5))
    t, r = (norms(v.T) + rng.uniform(0.1, 2, 5) for v in (z, mu))
    return Pairs(t, z, r, mu, t**2 - dot(z, z), r**2 - dot(mu, mu), t * r - dot(mu, z)), rng


def test_every_step_leads_nearer():
    a, edges = moons()
    problem = Problem(PointCosts(a), edges, 0.1)
    method = Interior(problem, Finish(problem, 1e-9, a), a.copy())
    before = float(method.pairs.sy.sum())
    assert method.run() and method.steps < 25
    assert float(method.pairs.sy.sum()) < 1e-7 * before
    slope = method.x - a + edges.adjoint(method.mu)
    np.testing.assert_allclose(slope, 0, atol=1e-10)  # the duals balance all the way
