"""Users at hand for experiments on the choice of clusters: two classes, hidden groups or none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from corsage.core.arrays import Bools, Floats, Ints
from corsage.core.losses import SQUARED_HINGE
from corsage.core.seeding import generator
from corsage.datasets.ellipses import draw
from corsage.experiments.convex_clustering.problem import RIDGE
from corsage.solvers.losses.convex import LinearLosses, linear_losses
from corsage.solvers.losses.held_out import Fold

TEST = 500
"""Test samples a user where they are drawn."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """Users with as many samples each; held out as in a federation (held_out.HeldOut).

    Parameters
    ----------
    a, l : inputs (n, m, p) and labels -1 and 1 (n, m).
    test_a, test_l : those of the tests.
    groups : the hidden group of each user (n,).
    seed : of the folds.
    """

    a: Floats
    l: Floats  # noqa: E741 - the paper's name
    test_a: Floats
    test_l: Floats
    groups: Ints
    seed: int
    _masks: dict[Fold, Bools] = field(default_factory=dict)

    def mask(self, fold: Fold) -> Bools:
        """Which samples are left out, (n, m)."""
        if fold not in self._masks:
            n, m = self.l.shape
            mask = np.zeros((n, m), bool)
            for user in range(n):
                mask[user, fold.held_out(self.seed, user, m)] = True
            self._masks[fold] = mask
        return self._masks[fold]

    def losses_without(self, fold: Fold | None) -> LinearLosses:
        """The squared hinge on all samples, or on those that are not held out."""
        keep = np.ones(self.l.shape, bool) if fold is None else ~self.mask(fold)
        rows, labels = torch.from_numpy(self.a[keep]), torch.from_numpy(self.l[keep] > 0)
        sizes = keep.sum(1)
        return linear_losses(rows, labels, sizes, loss=SQUARED_HINGE, scale="mean", ridge=RIDGE)

    def evaluate(self, models: Floats, fold: Fold) -> Floats:
        """The mean squared hinge on the held-out samples; NaN where a user has none."""
        mask = self.mask(fold)
        lost = np.square(np.maximum(0, 1 - self.l * scores(self.a, models))) * mask
        count = mask.sum(1)
        return np.where(count > 0, lost.sum(1) / np.maximum(count, 1), np.nan)

    def right(self, models: Floats) -> Bools:
        """Which test samples each user's model gets right, (n, t)."""
        return np.asarray((scores(self.test_a, models) > 0) == (self.test_l > 0))

    def accuracy(self, models: Floats) -> float:
        """The mean over users of what they get right in their tests, in %."""
        return 100 * float(self.right(models).mean())

    def noise(self, one: Floats, other: Floats) -> float:
        """The standard error of the difference of two accuracies, as test samples are drawn, in %.

        Users with the same test samples are one. (Those of the digits overlap: there it is more.)
        """
        apart = self.right(one).astype(np.float64) - self.right(other)
        _, place = np.unique(self.test_a.reshape(len(apart), -1), axis=0, return_inverse=True)
        sums = np.zeros((int(place.max()) + 1, apart.shape[1]))
        np.add.at(sums, place.ravel(), apart / len(apart))
        return 100 * float(np.sqrt((sums.var(1, ddof=1) / sums.shape[1]).sum()))


def scores(a: Floats, models: Floats) -> Floats:
    """<w_i, a> + b_i of all samples of all users."""
    return np.asarray(np.einsum("nmf,nf->nm", a, models[:, :-1]) + models[:, -1:])


def ellipses(seed: int, samples: int, users: int, clusters: int = 3) -> Drawn:
    """The ellipses of section V, so many users a cluster."""
    drawn = draw(seed, clusters=clusters, users=users, samples=samples)
    tests = drawn.test_a[drawn.cluster], drawn.test_l[drawn.cluster]
    return Drawn(drawn.a, drawn.l, *tests, drawn.cluster.astype(np.int64), seed)


def scattered(seed: int, samples: int, users: int) -> Drawn:
    """No clusters: every user has a direction of its own, spread evenly about the circle."""
    rng = generator(seed, "scattered users")
    angles = rng.uniform(0, 2 * np.pi, users)
    w = np.stack([np.cos(angles), np.sin(angles)], 1)
    a = rng.normal(size=(users, samples + TEST, 2))
    noise = 0.3 * rng.normal(size=a.shape[:2])
    labels = np.where(np.einsum("nmf,nf->nm", a, w) + noise > 0, 1.0, -1.0)
    parts = a[:, :samples], labels[:, :samples], a[:, samples:], labels[:, samples:]
    return Drawn(*parts, np.arange(users), seed)


def digits(seed: int, samples: int, users: int) -> Drawn:
    """scikit-learn's digits, five and above or below, turned by a hidden quarter for each group.

    Images are halved to 4 x 4. Users of all three groups draw from a half of the images, and are
    tested on the other half, turned as theirs.
    """
    from sklearn.datasets import load_digits

    data: Any = load_digits()
    images = data.images.reshape(-1, 4, 2, 4, 2).mean((2, 4)) / 8 - 1
    signs, rng = np.where(data.target >= 5, 1.0, -1.0), generator(seed, "rotated digits")
    order = rng.permutation(len(images))
    half, groups = len(order) // 2, np.repeat(np.arange(3), users)
    rows = np.stack([rng.choice(order[:half], samples, replace=False) for _ in groups])
    tests = np.stack([rng.choice(order[half:], TEST, replace=False) for _ in groups])

    def turned(chosen: Ints) -> Floats:
        found = [
            np.rot90(images[own], int(k), (1, 2)) for own, k in zip(chosen, groups, strict=True)
        ]
        return np.stack(found).reshape(*chosen.shape, 16).astype(np.float64)

    return Drawn(turned(rows), signs[rows], turned(tests), signs[tests], groups, seed)
