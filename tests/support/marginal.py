"""Marginal likelihoods of generalised mixed models, written plainly: loops, sums and scipy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, gammaln

from corsage.core.arrays import Floats, Ints

LogDensity = Callable[[Floats, Floats, Floats, float], Floats]


def binomial(u: Floats, y: Floats, weight: Floats, shape: float) -> Floats:
    """Of the share y of `weight` trials."""
    hits = weight * y
    ways = gammaln(weight + 1) - gammaln(hits + 1) - gammaln(weight - hits + 1)
    return ways + hits * np.log(expit(u)) + (weight - hits) * np.log(expit(-u))


def poisson(u: Floats, y: Floats, weight: Floats, shape: float) -> Floats:
    """Of counts."""
    return weight * (y * u - np.exp(u) - gammaln(y + 1))


def negative_binomial(u: Floats, y: Floats, weight: Floats, shape: float) -> Floats:
    """Of counts with the variance mean + mean^2/k."""
    k, mean = np.exp(shape), np.exp(u)
    found = gammaln(y + k) - gammaln(k) - gammaln(y + 1)
    return weight * (found + k * np.log(k / (k + mean)) + y * np.log(mean / (k + mean)))


def gamma(u: Floats, y: Floats, weight: Floats, shape: float) -> Floats:
    """Of amounts with the shape nu."""
    nu = weight * np.exp(shape)
    return nu * np.log(nu) - gammaln(nu) + (nu - 1) * np.log(y) - nu * u - nu * y * np.exp(-u)


DENSITIES: dict[str, LogDensity] = {
    "logistic": binomial, "binomial": binomial, "poisson": poisson,
    "negative-binomial": negative_binomial, "gamma": gamma,
}  # fmt: skip


def dense(
    family: str,
    x: Floats,
    y: Floats,
    weight: Floats,
    user: Ints,
    beta: Floats,
    s: float,
    shape: float,
) -> float:
    """Random intercepts, by the trapezoid rule over 4,001 effects from -9 to 9 deviations."""
    u = np.linspace(-9, 9, 4001)
    prior = -(u**2) / 2 - np.log(2 * np.pi) / 2
    total = 0.0
    for one in np.unique(user):
        rows = user == one
        score = (x[rows] @ beta)[:, None] + s * u
        height = prior + DENSITIES[family](score, y[rows, None], weight[rows, None], shape).sum(0)
        top = height.max()
        total += top + np.log(np.trapezoid(np.exp(height - top), u))
    return total


def joint_laplace(
    family: str, x: Floats, y: Floats, weight: Floats, shape: float, z: Floats, start: Floats
) -> float:
    """All effects at once: z (N, q) is what each adds to a row's score, all standard normal."""

    def fall(u: Floats) -> float:
        return float(u @ u / 2 - DENSITIES[family](x + z @ u, y, weight, shape).sum())

    def slope(u: Floats) -> Floats:
        return u - z.T @ first(u)

    def first(u: Floats, h: float = 1e-6) -> Floats:
        score = x + z @ u
        up, down = (DENSITIES[family](score + e, y, weight, shape) for e in (h, -h))
        return (up - down) / (2 * h)

    best = minimize(fall, start, jac=slope, method="BFGS", options={"gtol": 1e-9}).x
    score, h = x + z @ best, 1e-4
    middle, up, down = (DENSITIES[family](score + e, y, weight, shape) for e in (0.0, h, -h))
    bent = np.eye(len(best)) - z.T @ ((up + down - 2 * middle) / h**2 * z.T).T
    return -fall(best) - np.linalg.slogdet(bent)[1] / 2
