"""Variances of several outputs over the same rows, against the dense likelihood."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.metrics import adjusted_rand_score

from corsage.core.arrays import Floats, Ints
from corsage.solvers.convex_clustering.proposals import proposals
from corsage.solvers.convex_clustering.reading import in_order
from corsage.solvers.known_clusters.variances import shared_rows
from corsage.solvers.known_clusters.variances.shared_groups import groups
from corsage.solvers.known_clusters.variances.shared_rows import Rows, Shared, drawn_to, fit

D, C, M = 3, 2, 12
Data = tuple[list[Floats], list[Floats], Ints]


def drawn(clusters: int, between: float, seed: int = 0) -> Data:
    """Users, five a cluster, with s = .5 and sigma = .3."""
    rng = np.random.default_rng(seed)
    of = np.repeat(np.arange(clusters), 5)
    w = rng.normal(size=(D, C)) + between * rng.normal(size=(clusters, D, C))
    theta = w[of] + 0.5 * rng.normal(size=(len(of), D, C))
    z = [rng.normal(size=(M, D)) for _ in of]
    y = [x @ t + 0.3 * rng.normal(size=(M, C)) for x, t in zip(z, theta, strict=True)]
    return z, y, of


def sums(z: list[Floats], y: list[Floats]) -> Rows:
    return Rows(
        np.stack([x.T @ x for x in z]),
        np.stack([x.T @ out for x, out in zip(z, y, strict=True)]),
        np.array([np.square(out).sum() for out in y]),
        np.array([float(len(x)) for x in z]),
    )


def dense(data: Data, rho: float, tau: float, sigma2: float) -> tuple[float, Floats]:
    """-2 log restricted likelihood from the covariance of all records, and wbar."""
    z, y, of = data
    x, out = np.concatenate(z), np.concatenate(y)
    user = np.repeat(np.arange(len(z)), M)
    alike, near = user[:, None] == user, of[user][:, None] == of[user]
    v = sigma2 * (np.eye(len(x)) + (x @ x.T) * (rho * alike + tau * near))
    inner = x.T @ np.linalg.solve(v, x)
    wbar = np.linalg.solve(inner, x.T @ np.linalg.solve(v, out))
    rest = out - x @ wbar
    logs = np.linalg.slogdet(v)[1] + np.linalg.slogdet(inner)[1]
    found = C * (logs + (len(x) - D) * np.log(2 * np.pi))
    return float(found + np.sum(rest * np.linalg.solve(v, rest))), wbar


def fitted(data: Data) -> Shared:
    return fit(sums(*data[:2]), data[2], int(data[2].max()) + 1)


@pytest.mark.parametrize("clusters", [1, 4])
def test_it_is_the_dense_likelihood_and_its_maximum(clusters: int) -> None:
    data = drawn(clusters, 0.7)
    found = fitted(data)
    at, wbar = dense(data, found.rho, found.tau, found.sigma2)
    assert at == pytest.approx(found.deviance, abs=1e-6)
    assert np.allclose(found.wbar, wbar, atol=1e-9)
    free = [found.rho, found.sigma2] + [found.tau] * (clusters > 1)

    def deviance(logs: Floats) -> float:
        rho, sigma2, *tau = np.exp(logs)
        return dense(data, rho, tau[0] if tau else 0.0, sigma2)[0]

    best = minimize(deviance, np.log(free), method="Nelder-Mead", options={"fatol": 1e-8})
    assert 0 <= found.deviance - best.fun < 0.01


def test_clusters_that_do_not_differ_have_no_variance() -> None:
    rows = sums(*drawn(4, 0.0, seed=3)[:2])
    alike = Rows(*(np.tile(part[:5], (4,) + (1,) * (part.ndim - 1)) for part in rows))
    assert fit(alike, np.repeat(np.arange(4), 5), 4).tau == 0


def test_the_centres_are_those_of_the_joint_problem() -> None:
    """w_j and wbar minimise the objective that is left when theta is minimised out."""
    data = drawn(3, 0.7)
    rows, found = sums(*data[:2]), fitted(data)

    def objective(w: Floats, wbar: Floats) -> float:
        theta = drawn_to(rows.a, rows.b, found.rho, w[data[2]])
        fits = 0.5 * np.einsum("ndc,nde,nec->", theta, rows.a, theta) - np.sum(theta * rows.b)
        pulls = np.square(theta - w[data[2]]).sum() / found.rho
        return float(fits + 0.5 * (pulls + np.square(w - wbar).sum() / found.tau))

    best, rng = objective(found.w, found.wbar), np.random.default_rng(1)
    for _ in range(20):
        step, other = 1e-3 * rng.normal(size=found.w.shape), 1e-3 * rng.normal(size=(D, C))
        assert objective(found.w + step, found.wbar) > best
        assert objective(found.w, found.wbar + other) > best


def test_pieces_of_users_are_all_users(monkeypatch: pytest.MonkeyPatch) -> None:
    data = drawn(4, 0.7)
    whole = fitted(data)
    monkeypatch.setattr(shared_rows, "INVERTED_AT_ONCE", 3)
    pieces = fitted(data)
    assert pieces.deviance == pytest.approx(whole.deviance, abs=1e-9)


def users(groups_there: int, seed: int, n: int = 24, m: int = 15) -> tuple[Rows, Ints]:
    """Sums of users in so many groups, each with a little of its own."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(groups_there, 6, 3))
    labels = np.arange(n) % groups_there
    parts: list[tuple[Floats, Floats, float]] = []
    for c in labels:
        z = rng.normal(size=(m, 6))
        theta = centres[c] + 0.2 * rng.normal(size=(6, 3))
        y = z @ theta + rng.normal(size=(m, 3))
        parts.append((z.T @ z, z.T @ y, float(np.square(y).sum())))
    a, b, yy = (np.stack(part) for part in zip(*parts, strict=True))
    return Rows(a, b, yy, np.full(n, float(m))), in_order(labels)


@pytest.mark.parametrize("seed", range(3))
def test_groups_that_are_there_are_found(seed: int) -> None:
    """With the number of groups, and the fit of those who are told."""
    rows, labels = users(3, seed)
    found = groups(rows, proposals)
    assert adjusted_rand_score(found.labels, labels) == 1.0
    assert found.shared.deviance == pytest.approx(fit(rows, labels, 3).deviance)
    assert found.gain > 0


@pytest.mark.parametrize("seed", range(3))
def test_one_group_stays_one(seed: int) -> None:
    found = groups(users(1, seed)[0], proposals)
    assert not found.labels.any() and found.source == "one"


def test_two_users_are_one_cluster() -> None:
    """Fewer than three cannot be told apart."""
    rows = users(1, 0, n=2)[0]
    assert groups(rows, proposals).labels.tolist() == [0, 0]
