"""The exact solver: against one dense system, the best linear unbiased predictor, and scipy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from corsage.core.errors import ModelError
from corsage.solvers.known_clusters.mixed_model import (
    ClusterSums,
    by_cluster,
    centres,
    pack,
    personal,
    shrunk,
    unpack,
)
from corsage.solvers.known_clusters.newton_rounds import change, damped, newton_message, travelled

SEEDS = st.integers(0, 2**32 - 1)
N, K, D = 9, 3, 4
CLUSTER = np.array([0, 1, 2, 0, 1, 1, 2, 0, 0])


def data(seed, m=2, n=N, d=D):
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((n, m, d)), rng.standard_normal((n, m))
    return x, y, x.mT @ x, np.einsum("nmd,nm->nd", x, y)


def solve(a, b, gamma, lam, cluster=CLUSTER, k=K):
    sums = ClusterSums.of(a, b, gamma, cluster, k)
    found = centres(sums.P, sums.q, lam)
    return personal(a, b, gamma, found.w[cluster]), found


def dense(a, b, gamma, lam, cluster=CLUSTER, k=K):
    """All of theta, w and wbar from one linear system; ties are numbers or one a coordinate."""
    n, d = b.shape
    size = n + k + 1
    h, g = np.zeros((size, d, size, d)), np.zeros((size, d))

    def tie(one, other, strength):
        for c in range(d):
            value = np.broadcast_to(strength, d)[c]
            h[one, c, one, c] += value
            h[other, c, other, c] += value
            h[one, c, other, c] -= value
            h[other, c, one, c] -= value

    for i in range(n):
        h[i, :, i, :] += a[i]
        g[i] = b[i]
        tie(i, n + cluster[i], gamma[i])
    for j in range(k):
        tie(n + j, n + k, lam[j])
    x = np.linalg.solve(h.reshape(size * d, -1), g.ravel()).reshape(size, d)
    return x[:n], x[n:-1], x[-1]


@pytest.mark.parametrize("m", [1, 2, 4, 30])
@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_it_is_the_solution_of_one_dense_system(m, seed):
    _, _, a, b = data(seed, m)
    rng = np.random.default_rng(seed + 1)
    gamma, lam = 10 ** rng.uniform(-2, 2, N), 10 ** rng.uniform(-2, 2, K)
    theta, found = solve(a, b, gamma, lam)
    for mine, reference in zip((theta, *found), dense(a, b, gamma, lam), strict=True):
        assert mine == pytest.approx(reference, rel=1e-8, abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_ties_may_differ_by_coordinate(seed):
    _, _, a, b = data(seed, 5)
    rng = np.random.default_rng(seed + 1)
    gamma, lam = 10 ** rng.uniform(-2, 2, (N, D)), 10 ** rng.uniform(-2, 2, (K, D))
    theta, found = solve(a, b, gamma, lam)
    for mine, reference in zip((theta, *found), dense(a, b, gamma, lam), strict=True):
        assert mine == pytest.approx(reference, rel=1e-8, abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.integers(1, 6))
def test_nothing_near_it_is_better(seed, m):
    _, _, a, b = data(seed, m)
    rng = np.random.default_rng(seed + 1)
    gamma, lam = 10 ** rng.uniform(-2, 2, N), 10 ** rng.uniform(-2, 2, K)
    theta, found = solve(a, b, gamma, lam)

    def objective(theta, w, wbar):
        own = np.einsum("ni,nij,nj->", theta, a, theta) / 2 - np.sum(b * theta)
        users = gamma @ np.square(theta - w[CLUSTER]).sum(1)
        return own + (users + lam @ np.square(w - wbar).sum(1)) / 2

    best = objective(theta, *found)
    for _ in range(5):
        other = [part + 0.01 * rng.standard_normal(part.shape) for part in (theta, *found)]
        assert objective(*other) > best


def test_it_is_the_minimiser_with_two_regularisers():
    """(2.1) with alpha_j = lambda_j/(lambda_j + G_j): Theorem 2.2."""
    _, _, a, b = data(3, 5)
    rng = np.random.default_rng(4)
    gamma, lam = rng.uniform(0.3, 2, N), rng.uniform(0.3, 5, K)
    own = np.array([gamma[j == CLUSTER].sum() for j in range(K)])
    alpha = (lam / (lam + own))[CLUSTER]
    inner = np.zeros((N, N))
    for j in range(K):
        inner[:, j == CLUSTER] = np.where(CLUSTER[:, None] == j, gamma[j == CLUSTER] / own[j], 0)
    outer = np.broadcast_to(alpha * gamma / (alpha * gamma).sum(), (N, N))
    pull = np.zeros((N, N))
    for mean, share in ((inner, 1 - alpha), (outer, alpha)):
        away = np.eye(N) - mean
        pull += away.T @ np.diag(share * gamma) @ away
    h = np.einsum("nij,nm->nimj", a, np.eye(N)) + np.einsum("nm,ij->nimj", pull, np.eye(D))
    expected = np.linalg.solve(h.reshape(N * D, -1), b.ravel()).reshape(N, D)
    assert solve(a, b, gamma, lam)[0] == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("m", [1, 3, 8])
def test_it_is_the_best_linear_unbiased_predictor(m):
    """Proposition 5.3's estimator, by the covariances of all records."""
    x, y, a, b = data(5, m)
    rng = np.random.default_rng(6)
    s2, user, top = 0.7, rng.uniform(0.2, 3, K), 1.7
    between = np.equal.outer(CLUSTER, CLUSTER) * top + np.diag(user[CLUSTER])
    theta_y = np.einsum("ab,bmd->adbm", between, x).reshape(N * D, N * m)
    z = np.zeros((N * m, N * D))
    for i in range(N):
        z[i * m : i * m + m, i * D : i * D + D] = x[i]
    v = z @ theta_y + s2 * np.eye(N * m)
    flat, flat_y = x.reshape(-1, D), y.ravel()
    inverse = np.linalg.inv(v)
    wbar = np.linalg.solve(flat.T @ inverse @ flat, flat.T @ inverse @ flat_y)
    expected = wbar + (theta_y @ inverse @ (flat_y - flat @ wbar)).reshape(N, D)
    theta, found = solve(a, b, s2 / user[CLUSTER], np.full(K, s2 / top))
    assert found.wbar == pytest.approx(wbar, rel=1e-9)
    assert theta == pytest.approx(expected, rel=1e-9, abs=1e-10)


# The ends: ties of 0 and inf.


@pytest.mark.parametrize("m", [1, 3, 8])
def test_without_ties_everyone_is_alone(m):
    x, y, a, b = data(7, m)
    theta, found = solve(a, b, 0.0, 1.0)
    expected = [np.linalg.pinv(own) @ out for own, out in zip(x, y, strict=True)]
    assert theta == pytest.approx(np.array(expected), abs=1e-10)
    assert not found.w.any() and not found.wbar.any()
    # Ties next to nothing leave where the data point as it is, and fill in the rest.
    near, centre = solve(a, b, 1e-11, 1e-11)
    rest = np.eye(D) - np.linalg.pinv(x) @ x
    filled = theta + (rest @ centre.w[CLUSTER][..., None])[..., 0]
    assert near == pytest.approx(filled, abs=1e-7)


@pytest.mark.parametrize("strong", [np.inf, 1e14])
def test_infinite_ties_are_one_model(strong):
    _, _, a, b = data(8, 3)
    theta, found = solve(a, b, strong, np.full(K, 0.5))
    assert theta == pytest.approx(found.w[CLUSTER], abs=1e-10)
    sums = by_cluster(a, CLUSTER, K), by_cluster(b, CLUSTER, K)
    expected = solve(*sums, 0.5, np.inf, np.zeros(K, int), 1)
    assert found.w == pytest.approx(expected[0], abs=1e-9)
    theta, found = solve(a, b, strong, strong)
    single = np.linalg.solve(a.sum(0), b.sum(0))
    assert theta == pytest.approx(np.broadcast_to(single, (N, D)), abs=1e-8)
    assert found.wbar == pytest.approx(single, abs=1e-8)


def test_clusters_that_are_not_tied_do_not_count():
    _, _, a, b = data(9, 3)
    lam = np.array([0.0, np.inf, 2.0])
    gamma = np.full(N, 0.8)
    _, found = solve(a, b, gamma, lam)
    rest = CLUSTER != 0
    _, others = solve(a[rest], b[rest], gamma[rest], lam[1:], CLUSTER[rest] - 1, 2)
    assert found.wbar == pytest.approx(others.wbar, abs=1e-10)
    assert found.w[1:] == pytest.approx(others.w, abs=1e-10)
    assert found.w[1] == pytest.approx(found.wbar)
    _, alone = solve(a[~rest], b[~rest], 0.8, np.inf, np.zeros(len(a[~rest]), int), 1)
    assert found.w[0] == pytest.approx(alone.w[0], abs=1e-10)
    _, free = solve(a, b, gamma, 0.0)
    assert free.wbar == pytest.approx(free.w.mean(0))


def test_what_data_leave_open_is_shortest():
    a, b = np.zeros((2, 3, 3)), np.zeros((2, 3))
    a[0, 0, 0], b[0, 0] = 2.0, 4.0
    theta, found = solve(a, b, 1.0, 1.0, np.array([0, 1]), 2)
    assert found.wbar == pytest.approx([2, 0, 0]) and theta[1] == pytest.approx([2, 0, 0])
    empty = centres(*shrunk(a, b, 1.0), np.array([1.0, np.inf]))
    assert empty.w[1] == pytest.approx(empty.wbar)


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.floats(-300, 300), st.integers(1, 6))
def test_messages_stay_between_nothing_and_the_loss(seed, power, m):
    _, _, a, b = data(seed, m)
    gamma = 10.0**power
    p, q = shrunk(a, b, gamma)
    values = np.linalg.eigvalsh(p)
    scale = np.linalg.eigvalsh(a)[:, -1:]
    assert (values >= -1e-12 * np.minimum(gamma, scale)).all()
    assert (values <= np.minimum(gamma, scale) * (1 + 1e-10)).all()
    # The quadratic of the centre is least where the local loss is.
    own = personal(a, b, 0.0, 0 * b)
    gap = np.einsum("nij,nj->ni", p, own) - q
    limit = 1e-9 * max(1.0, float(np.abs(own).max()))  # a few records leave models of any size
    assert np.abs(gap).max() <= limit * np.minimum(gamma, scale.max())
    w = np.broadcast_to(np.arange(1.0, D + 1), b.shape)
    assert np.isfinite(personal(a, b, gamma, w)).all()


def test_wrong_strengths_are_refused():
    _, _, a, b = data(1)
    for gamma in (-1.0, np.nan, np.full(N, -0.1)):
        with pytest.raises(ModelError, match="from 0 to inf"):
            shrunk(a, b, gamma)
    with pytest.raises(ModelError, match="by coordinate"):
        personal(a, b, np.zeros((N, D)), b)


# Sums.


def test_sums_add_over_nodes_and_survive_the_wire():
    _, _, a, b = data(2)
    gamma = np.linspace(0.5, 2, N)
    whole = ClusterSums.of(a, b, gamma, CLUSTER, K)
    parts = [np.arange(0, 4), np.arange(4, 5), np.arange(5, N)]
    split = [ClusterSums.of(a[p], b[p], gamma[p], CLUSTER[p], K) for p in parts]
    rows = sum(part.packed() for part in split)
    assert rows.shape == (K, D * (D + 1) // 2 + D)
    found = ClusterSums.unpacked(rows, D)
    assert pytest.approx(whole.P) == found.P and found.q == pytest.approx(whole.q)
    total = split[0] + split[1] + split[2]
    assert pytest.approx(whole.P) == total.P and total.q == pytest.approx(whole.q)


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.integers(0, 12), st.integers(1, 6))
def test_sums_by_cluster(seed, n, k):
    rng = np.random.default_rng(seed)
    values, cluster = rng.standard_normal((n, 2, 3)), rng.integers(k, size=n)
    expected = [
        sum((values[i] for i in range(n) if cluster[i] == j), np.zeros((2, 3))) for j in range(k)
    ]
    assert by_cluster(values, cluster, k) == pytest.approx(np.array(expected))


def test_packing():
    p = np.random.default_rng(0).standard_normal((2, 3, 4, 4))
    p = p + p.mT
    assert pack(p).shape == (2, 3, 10) and (unpack(pack(p), 4) == p).all()


# Newton.


def logistic(theta, x, y):
    """Gradients and Hessians of sum log(1 + exp(-y u))."""
    u = np.einsum("nmd,nd->nm", x, theta)
    share = 1 / (1 + np.exp(y * u))
    gradient = np.einsum("nmd,nm->nd", x, -y * share)
    return gradient, np.einsum("nmd,nm,nme->nde", x, share * (1 - share), x)


def test_newton_rounds_minimise_logistic_losses():
    rng = np.random.default_rng(11)
    x = 3 * rng.standard_normal((N, 6, D))
    y = np.sign(rng.standard_normal((N, 6)))
    gamma, lam = np.full(N, 0.3), np.full(K, 0.2)
    theta, w, moved = np.zeros((N, D)), np.zeros((K, D)), []
    for _ in range(12):
        gradient, hessian = logistic(theta, x, y)
        a, b = newton_message(hessian, gradient, theta)
        wanted, found = solve(a, b, gamma, lam)
        reach = np.abs(np.einsum("nmd,nd->nm", x, wanted - theta)).max(1)
        step = damped(wanted - theta, reach)
        assert np.abs(np.einsum("nmd,nd->nm", x, step)).max() < 3 + 1e-9
        theta, w = theta + step, found.w
        moved.append(change(travelled(step, theta)))
    assert moved[-1] < 1e-12 and moved[0] > 0.1

    def value(flat):
        parts = flat.reshape(N + K + 1, D)
        own, centre, top = parts[:N], parts[N:-1], parts[-1]
        loss = np.logaddexp(0, -y * np.einsum("nmd,nd->nm", x, own)).sum()
        ties = 0.3 * np.square(own - centre[CLUSTER]).sum() + 0.2 * np.square(centre - top).sum()
        return loss + ties / 2

    best = minimize(value, np.zeros((N + K + 1) * D), method="BFGS", options={"gtol": 1e-9})
    parts = best.x.reshape(-1, D)
    assert theta == pytest.approx(parts[:N], abs=1e-5)
    assert w == pytest.approx(parts[N:-1], abs=1e-5)


def test_damping_and_change():
    step = np.array([[3.0, 4.0], [0.3, 0.4]])
    found = damped(step, np.array([10.0, 1.0]), limit=5.0)
    assert found == pytest.approx(np.array([[1.5, 2.0], [0.3, 0.4]]))
    assert damped(step, np.zeros(2)) == pytest.approx(step)
    assert change(travelled(step, 10 * step)) == pytest.approx(0.1)
    assert change(travelled(step, 0 * step)) == pytest.approx(np.sqrt(25.25))
