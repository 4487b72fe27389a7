"""Users at hand with samples that are held out: two classes, hidden groups."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from corsage.core.arrays import Bools, Floats, Ints
from corsage.core.losses import SQUARED_HINGE
from corsage.datasets.ellipses import draw
from corsage.experiments.convex_clustering.problem import RIDGE
from corsage.solvers.losses.held_out import Fold
from corsage.solvers.losses.linear_losses import LinearLosses


@dataclass(frozen=True, eq=False)
class Drawn:
    """Users with as many samples each; held out as in a federation (held_out.HeldOut).

    Parameters
    ----------
    a, l : inputs (n, m, p) and labels -1 and 1 (n, m).
    groups : the hidden group of each user (n,).
    seed : of the folds.
    """

    a: Floats
    l: Floats  # noqa: E741 - the paper's name
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
        return LinearLosses(rows, labels, sizes, loss=SQUARED_HINGE, scale="mean", ridge=RIDGE)

    def evaluate(self, models: Floats, fold: Fold) -> Floats:
        """The mean squared hinge on the held-out samples; NaN where a user has none."""
        mask = self.mask(fold)
        lost = np.square(np.maximum(0, 1 - self.l * scores(self.a, models))) * mask
        count = mask.sum(1)
        return np.where(count > 0, lost.sum(1) / np.maximum(count, 1), np.nan)


def scores(a: Floats, models: Floats) -> Floats:
    """<w_i, a> + b_i of all samples of all users."""
    return np.asarray(np.einsum("nmf,nf->nm", a, models[:, :-1]) + models[:, -1:])


def ellipses(seed: int, samples: int, users: int, clusters: int = 3) -> Drawn:
    """The ellipses of section V, so many users a cluster."""
    drawn = draw(seed, clusters=clusters, users=users, samples=samples)
    return Drawn(drawn.a, drawn.l, drawn.cluster.astype(np.int64), seed)
