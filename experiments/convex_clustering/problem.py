"""The users of `datasets.ellipses` as convex losses, as in section V of Armacki et al. 2022."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from corsage.core.arrays import Floats, Ints
from corsage.core.errors import RoundFailed
from corsage.core.losses import SQUARED_HINGE
from corsage.datasets.ellipses import Ellipses, draw
from corsage.solvers.convex_clustering.exact.edges import Edges, norms
from corsage.solvers.losses.linear_losses import LinearLosses

RIDGE = 1e-3

OPTIMA = {
    0.001: 10.6185398,
    0.01: 24.4998613,
    0.04: 42.1940442,
    0.0913593: 55.9970389,
    0.1: 57.1627477,
}
"""P* at some lam for the draw of seed 1, by CVXPY and Clarabel."""


@lru_cache
def drawn(seed: int = 1, clusters: int = 3) -> Ellipses:
    """The points."""
    return draw(seed, clusters=clusters)


def losses_of(a: Floats, signs: Floats) -> LinearLosses:
    """The squared hinge on points (n, m, 2) with labels -1 and 1 (n, m), section V."""
    n, m = signs.shape
    classes = torch.from_numpy((signs.ravel() > 0).astype(np.int64))
    features = torch.from_numpy(np.ascontiguousarray(a.reshape(n * m, 2)))
    sizes = np.full(n, m)
    return LinearLosses(features, classes, sizes, loss=SQUARED_HINGE, scale="mean", ridge=RIDGE)


@lru_cache
def problem(seed: int = 1, clusters: int = 3) -> tuple[LinearLosses, Ints]:
    """The users' losses and their true clusters."""
    points = drawn(seed, clusters)
    return losses_of(points.a, points.l), points.cluster.astype(np.int64)


def accuracy(x: Floats, seed: int = 1, clusters: int = 3) -> float:
    """The mean over users of the accuracy on their cluster's test points."""
    points = drawn(seed, clusters)
    scores = np.einsum("npf,nf->np", points.test_a[points.cluster], x[:, :2]) + x[:, 2:]
    return float(((scores > 0) == (points.test_l[points.cluster] > 0)).mean())


def objective(losses: LinearLosses, lam: float, edges: Edges, x: Floats) -> float:
    """P(X)."""
    penalty = lam * float(edges.w @ norms(edges.differences(x)))
    return float(losses.value(torch.from_numpy(x)).sum()) + penalty


def curvature(losses: LinearLosses) -> float:
    """H: the mean over users of trace(hessian of f_i at 0)/d."""
    zero = torch.zeros(losses.n, losses.d, dtype=losses.dtype)
    return float(losses.hessian(zero).diagonal(dim1=1, dim2=2).mean())


def slope(losses: LinearLosses) -> float:
    """The mean over the users of |grad f_i(0)|."""
    zeros = torch.zeros((losses.n, losses.d), dtype=torch.float64)
    return float(losses.gradient(zeros).norm(dim=1).mean())


def squared_penalty(losses: LinearLosses, gamma: float, start: Floats) -> Floats:
    """argmin of sum_i f_i(x_i) + gamma sum_{i<j} |x_i - x_j|^2, by semismooth Newton steps.

    This gamma is 2 N times that of (4).
    """
    n, d = losses.n, losses.d
    spread = 2 * gamma * (n * np.eye(n) - np.ones((n, n)))
    x = start
    for _ in range(100):
        at = torch.from_numpy(x)
        g = losses.gradient(at).numpy() + spread @ x
        if np.abs(g).max() < 1e-10:
            return x
        matrix = np.einsum("ij,kl->ikjl", spread, np.eye(d))
        matrix[range(n), :, range(n)] += losses.hessian(at).numpy() + 1e-12 * np.eye(d)
        step = np.linalg.solve(matrix.reshape(n * d, n * d), g.ravel()).reshape(n, d)
        x = x - _length(losses, spread, x, step) * step
    raise RoundFailed(f"squared penalty: no solution for gamma={gamma:g}; try another.")


def _length(losses: LinearLosses, spread: Floats, x: Floats, step: Floats) -> float:
    """As much of a Newton step as lowers the objective."""

    def value(at: Floats) -> float:
        own = float(losses.value(torch.from_numpy(at)).sum())
        return own + float((at * (spread @ at)).sum()) / 2

    length, now = 1.0, value(x)
    while value(x - length * step) > now + 1e-13 * abs(now) and length > 1e-6:
        length /= 2
    return length


def within_distance(x: Floats, labels: Ints) -> float:
    """The mean distance between two users' models over all pairs of a cluster."""
    i, j = np.triu_indices(len(x), 1)
    same = labels[i] == labels[j]
    if not same.any():
        return 0.0
    return float(np.linalg.norm(x[i[same]] - x[j[same]], axis=1).mean())
