"""Random intercepts, and all coefficients random, beside statsmodels: variances, errors, shares."""

from __future__ import annotations

import numpy as np
import pytest

from corsage.solvers.known_clusters.mixed_model import centres, personal, shrunk
from corsage.solvers.known_clusters.variances.covariance import covariances, inverse, prediction
from corsage.solvers.known_clusters.variances.reml import (
    Variances,
    fit,
    level_sums,
    refined_grid,
    shares,
)
from tests.support.mixed_models import INTERCEPT, Records, Reference, records, statsmodels_fit


def fitted(data: Records, *, slopes: bool, nested: bool) -> Variances:
    """One refinement more, for the digits that are compared."""
    own = data.own if nested else np.zeros(data.user.max() + 1, np.int64)
    varies = None if slopes else INTERCEPT
    k = int(own.max()) + 1
    first = fit(level_sums(*data.sums(), own, k, varies=varies), common=True, varies=varies)
    sums = level_sums(*data.sums(), own, k, refined_grid(first), varies)
    return fit(sums, common=True, varies=varies)


@pytest.mark.parametrize("slopes", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_a_fit_is_that_of_statsmodels(slopes: bool, nested: bool) -> None:
    data = records(4, slopes=0.6 if slopes else 0.0)
    found, wanted = (
        fitted(data, slopes=slopes, nested=nested),
        statsmodels_fit(data, slopes=slopes, nested=nested),
    )
    assert found.sigma2 == pytest.approx(wanted.scale, rel=1e-3)
    assert found.user[0] == pytest.approx(wanted.user, rel=1e-3)
    assert found.between == pytest.approx(wanted.cluster, rel=1e-3)
    assert found.centres.wbar == pytest.approx(wanted.estimates, rel=1e-3)
    assert found.loglik == pytest.approx(wanted.loglik, abs=1e-3)
    errors = np.sqrt(found.sigma2 * np.diag(found.covariances.wbar))
    assert errors == pytest.approx(wanted.errors, rel=1e-3)
    assert np.array(shares(found)) == pytest.approx(expected_shares(data, wanted, slopes), rel=2e-3)


def expected_shares(data: Records, wanted: Reference, slopes: bool) -> list[float]:
    """The mean variance of x'theta over the records, beside that of the noise."""
    length = float(np.square(data.x).sum(1).mean()) if slopes else 1.0
    parts = np.array([wanted.scale, length * wanted.user, length * wanted.cluster])
    return list(parts / parts.sum())


def test_coordinates_with_infinite_strength_are_the_centres() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 4, 3))
    a, b = x.mT @ x, rng.standard_normal((5, 3))
    gamma = np.array([np.inf, 2.0, 0.5]) * np.ones((5, 3))
    large = np.where(np.isinf(gamma), 1e10, gamma)
    for found, wanted in zip(shrunk(a, b, gamma), shrunk(a, b, large), strict=True):
        assert found == pytest.approx(wanted, rel=1e-6, abs=1e-6)
    w = rng.standard_normal((5, 3))
    theta = personal(a, b, gamma, w)
    assert (theta[:, 0] == w[:, 0]).all()
    assert theta == pytest.approx(personal(a, b, large, w), rel=1e-6, abs=1e-6)
    found, wanted = centres(a, b, gamma), centres(a, b, large)
    assert found.w == pytest.approx(wanted.w, rel=1e-6)
    assert inverse(a, gamma) == pytest.approx(inverse(a, large), abs=1e-6)


@pytest.mark.parametrize("lam", [0.0, 0.7, np.inf])
def test_covariances_are_those_of_all_unknowns_at_once(lam: float) -> None:
    rng = np.random.default_rng(1)
    p = rng.standard_normal((3, 5, 2))
    p = p.mT @ p
    found = covariances(p, np.array(lam))
    if np.isinf(lam):
        whole = np.linalg.inv(p.sum(0))
        assert found.wbar == pytest.approx(whole) and found.w[2] == pytest.approx(whole)
        return
    if lam == 0:
        assert found.w == pytest.approx(np.linalg.inv(p))
        return
    size, eye = 8, lam * np.eye(2)  # wbar, then w_j
    fisher = np.zeros((size, size))
    for j in range(3):
        own = slice(2 + 2 * j, 4 + 2 * j)
        fisher[own, own] += p[j] + eye
        fisher[:2, :2] += eye
        fisher[:2, own] -= eye
        fisher[own, :2] -= eye
    whole = np.linalg.inv(fisher)
    assert found.wbar == pytest.approx(whole[:2, :2])
    assert found.w[1] == pytest.approx(whole[4:6, 4:6])


def test_prediction_weighs_own_data_as_reliability_does() -> None:
    records_, variance, noise = 7.0, 0.4, 1.6
    a, centre = np.array([[[records_]]]), np.zeros((1, 1, 1))
    covariance, own = prediction(a, np.array([noise / variance]), centre)
    reliability = variance / (variance + noise / records_)
    assert own[0, 0, 0] == pytest.approx(reliability)
    assert noise * covariance[0, 0, 0] == pytest.approx(variance * (1 - reliability))
