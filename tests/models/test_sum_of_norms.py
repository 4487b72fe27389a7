"""The exact solver of the sum-of-norms problem: against CVXPY, closed forms and invariances."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.app.errors import ConfigError, DataError, ModelError
from corsage.datasets.ellipses import draw
from corsage.models import newton_system
from corsage.models.convex import Quadratic, linear_losses, points
from corsage.models.costs import LossCosts
from corsage.models.edges import norms
from corsage.models.losses import LOGISTIC, SQUARED_HINGE
from corsage.models.sum_of_norms import (
    Edges,
    edge_terms,
    feasible,
    fit,
    gap,
    path,
    prox,
    user_terms,
)

SEEDS = st.integers(0, 2**32 - 1)
N, D, M = 9, 2, 6
ELLIPSES = {
    0.001: 10.6185398,
    0.01: 24.4998613,
    0.04: 42.1940442,
    0.0913593: 55.9970389,
    0.1: 57.1627477,
}


def random(seed):
    return np.random.default_rng(seed)


def blobs(seed=0, groups=3, each=4, d=2, width=0.3):
    rng = random(seed)
    return np.repeat(3 * rng.normal(size=(groups, d)), each, 0) + width * rng.normal(
        size=(groups * each, d)
    )


def ellipses(seed=1, users=20):
    drawn = draw(seed, users=users)
    n, m = drawn.l.shape
    return linear_losses(
        torch.from_numpy(drawn.a.reshape(n * m, 2)),
        torch.from_numpy(drawn.l.ravel() > 0),
        [m] * n,
        loss=SQUARED_HINGE,
        scale="mean",
        ridge=1e-3,
    )


def quadratic(seed):
    rng = random(seed)
    root, b = rng.normal(size=(N, D, D)), rng.normal(size=(N, D))
    a = root @ root.transpose(0, 2, 1) + 0.1 * np.eye(D)
    losses = Quadratic(*(torch.from_numpy(part) for part in (a, b, np.zeros(N))))
    return losses, lambda x: sum(
        cp.quad_form(x[i], cp.psd_wrap(a[i])) / 2 - b[i] @ x[i] for i in range(N)
    )


def huber_points(seed):
    a = blobs(seed, 3, 3)
    a[0] += 9.0
    losses = points(torch.from_numpy(a), "huber", 0.7)
    return losses, lambda x: cp.sum(cp.huber(cp.norm(x - a, 2, axis=1), 0.7)) / 2


def squared_hinge(seed):
    u, losses = linear(seed, SQUARED_HINGE)
    return losses, lambda x: penalised(
        x, sum(cp.sum_squares(cp.pos(1 - u[i] @ x[i])) for i in users())
    )


def logistic(seed):
    u, losses = linear(seed, LOGISTIC)
    return losses, lambda x: penalised(x, sum(cp.sum(cp.logistic(-u[i] @ x[i])) for i in users()))


def users():
    return range(N)


def penalised(x, loss):
    return loss / M + 0.05 * cp.sum_squares(x[:, :D]) / 2


def linear(seed, loss):
    rng = random(seed)
    a, y = rng.normal(size=(N, M, D)), rng.integers(0, 2, (N, M))
    y[:, :2] = 0, 1
    signs = (2 * y - 1)[..., None]
    u = signs * np.concatenate([a, np.ones((N, M, 1))], -1)
    flat = torch.from_numpy(a.reshape(-1, D)), torch.from_numpy(y.ravel())
    return u, linear_losses(*flat, [M] * N, loss=loss, scale="mean", ridge=0.05)


def by_cvxpy(cost, d, edges, lam):
    x = cp.Variable((edges.n, d))
    apart = cp.norm(x[edges.i] - x[edges.j], 2, axis=1)
    problem = cp.Problem(cp.Minimize(cost(x) + lam * (edges.w @ apart)))
    problem.solve(solver=cp.CLARABEL, tol_gap_rel=1e-10, tol_gap_abs=1e-10, tol_feas=1e-10)
    return problem.value, x.value


@pytest.mark.parametrize("lam", [0.02, 0.08, 0.3])
@pytest.mark.parametrize("kind", [quadratic, huber_points, squared_hinge, logistic])
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


def weighted(seed, n, share=0.6):
    rng, every = random(seed), Edges.all_pairs(n)
    keep = rng.random(len(every)) < share
    return Edges(every.i[keep], every.j[keep], rng.uniform(0.2, 2.0, keep.sum()), n)


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
@given(SEEDS, st.sampled_from([quadratic, huber_points, squared_hinge, logistic]))
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
    losses = linear_losses(x, y, [4, 4], loss=LOGISTIC, scale="mean", ridge=0.1)
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


@pytest.mark.parametrize("kind", ["sparse", "iterative"])
def test_other_solutions_of_the_newton_system_are_those_of_the_dense_one(kind, monkeypatch):
    a = blobs(groups=12, each=10, d=3)
    edges = Edges.knn(a, 4) if kind == "sparse" else weighted(0, len(a), 0.3)
    assert edges.sparse == (kind == "sparse")
    system = random_system(edges, a)
    g = random(1).normal(size=a.shape)
    expected = system.solve(g, 1e-12)
    full = system.matrix()
    full = np.tril(full) + np.tril(full, -1).T
    np.testing.assert_allclose(full @ expected.T.ravel(), -g.T.ravel(), atol=1e-8)
    monkeypatch.setattr(newton_system, "DENSE", 0)
    np.testing.assert_allclose(system.solve(g, 1e-12), expected, atol=1e-7)
    assert fit(a, 0.05, edges).value == pytest.approx(
        by_cvxpy(lambda x: cp.sum_squares(x - a) / 2, 3, edges, 0.05)[0], rel=1e-8
    )


def random_system(edges, a):
    rng, count = random(0), len(edges)
    unit = rng.normal(size=(count, 3))
    unit /= norms(unit)[:, None]
    weight = rng.uniform(0.1, 10, count)
    share = rng.choice([0.0, 1.0], count)
    blocks = LossCosts(points(torch.from_numpy(a), "quadratic", 1.0)).hessian(a)
    return newton_system.System(blocks, edges, weight, share * weight, unit)


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
        fit(points(torch.from_numpy(a).float(), "quadratic", 1.0), 1.0)
