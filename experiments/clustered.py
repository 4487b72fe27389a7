"""The users of `datasets.ellipses` as convex losses, as in section V of Armacki et al. 2022."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from corsage.datasets.ellipses import Ellipses, draw
from corsage.models.convex import LinearLosses, linear_losses
from corsage.models.held_out import Fold
from corsage.models.linear_problem import Floats, Ints
from corsage.models.losses import SQUARED_HINGE

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
    return linear_losses(
        features, classes, sizes, loss=SQUARED_HINGE, scale="mean", ridge=RIDGE
    )


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


class Splits:
    """`HeldOut` on the points of a draw."""

    def __init__(self, seed: int, clusters: int = 3) -> None:
        self.points, self.seed = drawn(seed, clusters), seed

    def _mask(self, fold: Fold) -> np.ndarray:
        n, m = self.points.l.shape
        mask = np.zeros((n, m), bool)
        for user in range(n):
            mask[user, fold.held_out(self.seed, user, m)] = True
        return mask

    def losses_without(self, fold: Fold | None) -> LinearLosses:
        """All points, or those that are not held out."""
        a, signs = self.points.a, self.points.l
        if fold is None:
            return losses_of(a, signs)
        keep, n = ~self._mask(fold), len(a)
        return losses_of(a[keep].reshape(n, -1, 2), signs[keep].reshape(n, -1))

    def evaluate(self, models: Floats, fold: Fold) -> Floats:
        """The mean squared hinge on the held-out points."""
        held, n = self._mask(fold), len(models)
        a, signs = self.points.a[held].reshape(n, -1, 2), self.points.l[held].reshape(n, -1)
        u = signs * (np.einsum("nmf,nf->nm", a, models[:, :2]) + models[:, 2:])
        return np.square(np.maximum(0, 1 - u)).mean(1)
