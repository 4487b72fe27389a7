"""Records of users in clusters, and what statsmodels finds in them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from corsage.benchmarks.mixed_reference import Reference, reference
from corsage.core.arrays import Floats, Ints

INTERCEPT = np.array([0.0, 0.0, 1.0])
"""What varies if only intercepts do; the intercept is last."""


class Records(NamedTuple):
    """x (n, 3) with the column of ones last, y (n,), the user of each record, and its cluster."""

    x: Floats
    y: Floats
    user: Ints
    cluster: Ints

    @property
    def own(self) -> Ints:
        """The cluster of each user."""
        return np.array([self.cluster[self.user == i][0] for i in range(self.user.max() + 1)])

    def sums(self) -> tuple[Floats, Floats, Floats, Ints]:
        """X'X, X'y, y'y and the records of each user."""
        rows = [self.user == i for i in range(self.user.max() + 1)]
        a = np.stack([self.x[r].T @ self.x[r] for r in rows])
        b = np.stack([self.x[r].T @ self.y[r] for r in rows])
        yy = np.array([self.y[r] @ self.y[r] for r in rows])
        return a, b, yy, np.array([int(r.sum()) for r in rows])


def records(seed: int, *, slopes: float, own: float = 0.8, top: float = 0.6) -> Records:
    """Unbalanced users in 8 clusters; intercepts vary, and slopes with the deviation `slopes`."""
    rng = np.random.default_rng(seed)
    cluster = np.repeat(np.arange(8), 6)
    sizes = rng.integers(3, 25, len(cluster))
    scale = np.array([slopes, slopes, 1.0])
    w = np.array([1.0, -0.5, 2.0]) + top * scale * rng.standard_normal((8, 3))
    theta = w[cluster] + own * scale * rng.standard_normal((len(cluster), 3))
    user = np.repeat(np.arange(len(cluster)), sizes)
    x = np.column_stack([rng.standard_normal(len(user)), 1 + rng.random(len(user)), user * 0 + 1.0])
    y = (x * theta[user]).sum(1) + 1.3 * rng.standard_normal(len(user))
    return Records(x, y, user, cluster[user])


def statsmodels_fit(data: Records, *, slopes: bool, nested: bool) -> Reference:
    """The best fit: intercepts vary, or all coefficients with the same variance."""
    z = data.x if slopes else data.x[:, 2:]
    return reference(data.x, data.y, z, data.user, data.cluster if nested else None)
