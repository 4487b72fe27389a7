"""Marginal likelihoods of generalised mixed models, written plainly, by scipy and autograd."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import expit, gammaln
from torch import Tensor

from corsage.core.arrays import Floats, Ints
from corsage.core.families import Row
from corsage.solvers.known_clusters.generalised.jets import Jet, derivatives, profiled
from corsage.solvers.known_clusters.generalised.rows import Block, Rows

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


def differentiated(
    rows: Rows, theta: Floats, tau: Floats, basis: Floats, around: Floats, nodes: int
) -> Jet:
    """`Rows.jets` by automatic differentiation: of rows' sums as they are written."""
    place, (q, _, r) = torch.from_numpy(np.concatenate([theta, tau])), basis.shape
    root = torch.from_numpy(np.einsum("kpr,k->pr", basis, tau[:q]))
    shape, found = torch.tensor(tau[q:].sum()), list[Jet]()
    for _, block in rows.blocks:
        n = len(block.x)
        u = block.mode(place[: len(theta)].expand(n, -1), root, shape)
        at = torch.cat([place.expand(n, -1), u], 1).requires_grad_()
        joint, functions = _parts(block, at, *map(torch.from_numpy, (basis, around)), nodes)
        found.append(profiled(functions, joint, at, r).summed())
    return Jet(*(sum(each) for each in zip(*found, strict=True)))


def _parts(
    block: Block, at: Tensor, basis: Tensor, around: Tensor, nodes: int
) -> tuple[Tensor, list[Tensor]]:
    d, (q, _, r) = block.x.shape[2], basis.shape
    theta, tau, u = at[:, :d], at[:, d : d + q], at[:, at.shape[1] - r :]
    row = block.row._replace(shape=at[:, d + q, None]) if block.family.shaped else block.row
    z = torch.einsum("nRp,kpr,nk->nRr", block.x, basis, tau)
    fixed = (block.x @ theta[..., None])[..., 0]
    score = fixed + (z @ u[..., None])[..., 0]
    joint = block.family.likelihood(score, row).sum(1) - u.square().sum(1) / 2
    weight = block.family.curvature(score, row)
    heavy = z * weight[..., None]
    bent = heavy.mT @ z + torch.eye(r)
    if nodes:
        place, weights = (torch.from_numpy(part) for part in np.polynomial.hermite.hermgauss(nodes))
        wide = bent[:, 0].rsqrt()
        each = u + np.sqrt(2) * wide * place
        own = Row(*(part[..., None] if part.dim() else part for part in row))
        height = block.family.likelihood(fixed[..., None] + z * each[:, None], own).sum(1)
        height = height - each.square() / 2 + place.square() + weights.log()
        return joint, [torch.logsumexp(height, 1) + wide[:, 0].log() - np.log(np.pi) / 2]
    small = -torch.logdet(bent) / 2
    if not around.shape[1]:
        return joint, [joint + small]
    slope = derivatives(joint, at)[:, :d] @ around
    v = block.x @ around
    cross = heavy.mT @ v
    left = (v * weight[..., None]).mT @ v - cross.mT @ torch.linalg.solve(bent, cross)
    curved = (left[:, i, j] for i, j in zip(*np.triu_indices(around.shape[1]), strict=True))
    return joint, [joint, small, *slope.unbind(1), *curved]
