"""Sums of records that are left out, fold by fold, for cross-validation (Lyu et al. 2022, 6.1)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from corsage.core.arrays import Floats, Ints
from corsage.core.seeding import uniforms
from corsage.solvers.known_clusters.mixed_model import by_cluster, personal

SINGLE_CENTRE_GRID: Floats = np.linspace(0.01, 2, 20)
"""lambda^sc as section 6.1 has it."""
HELD_OUT_FOLDS = 5


def solved(a: Floats, b: Floats) -> Floats:
    """A^+ b, over any leading axes."""
    return personal(a, b, 0.0, np.zeros_like(b))


class Folds(NamedTuple):
    """Held-out sums: A (F, n, d, d), b (F, n, d) and yy (F, n) of the records of each fold."""

    a: Floats
    b: Floats
    yy: Floats

    @property
    def rest(self) -> list[tuple[Floats, Floats]]:
        """A and b of the records outside each fold."""
        a, b = self.a.sum(0), self.b.sum(0)
        return [(a - own, b - slope) for own, slope in zip(self.a, self.b, strict=True)]

    def errors(self, fold: int, theta: Floats) -> float:
        """The squared errors of the models theta (n, d) on a fold's records, summed."""
        a, b, yy = self.a[fold], self.b[fold], self.yy[fold]
        square = np.einsum("ni,nij,nj->n", theta, a, theta)
        return float(np.sum(yy - 2 * np.sum(b * theta, axis=-1) + square))


def keyed(counts: Ints, keys: NDArray[np.uint64], least: int = 1) -> tuple[Ints, Ints]:
    """Deal each user's records over the folds, beginning with a fold of its own.

    A user's folds have `least` of its records, or none. The records' users, and their folds.

    Users draw for themselves, by their keys; records are in the users' order. One with fewer
    records than folds leaves out one at a time; with a single record it is at times predicted from
    its centre alone, as a user without data would be. The random beginnings keep the folds of such
    users equal in size.
    """
    user = np.repeat(np.arange(len(keys)), counts)
    place = np.arange(len(user)) - np.repeat(np.cumsum(counts) - counts, counts)
    draws = np.empty(len(user))
    for number in range(int(counts.max())):
        draws[place == number] = uniforms(keys[user[place == number]], number)
    starts = (uniforms(keys, -1) * HELD_OUT_FOLDS).astype(np.int64)
    return user, dealt(user, draws, starts, HELD_OUT_FOLDS, least)


def dealt(user: Ints, draws: Floats, starts: Ints, folds: int, least: int = 1) -> Ints:
    """The fold of each record, in the order of its user's `draws`; each has `least`, or none."""
    order = np.lexsort((draws, user))
    counts = np.bincount(user, minlength=len(starts))
    place = np.arange(len(user)) - np.repeat(np.cumsum(counts) - counts, counts)
    each = np.clip(counts // max(least, 1), 1, folds)
    fold = np.empty(len(user), np.int64)
    fold[order] = (place % np.repeat(each, counts) + np.repeat(starts, counts)) % folds
    return fold


def sums_in(
    x: Floats, y: Floats, user: Ints, fold: Ints, n: int = 0, folds: int = HELD_OUT_FOLDS
) -> Folds:
    """The sums of n users' records, where their folds are known."""
    n, d = n or int(user.max()) + 1, x.shape[1]
    cell = fold * n + user
    a = by_cluster(x[:, :, None] * x[:, None, :], cell, folds * n)
    b, yy = by_cluster(x * y[:, None], cell, folds * n), by_cluster(np.square(y), cell, folds * n)
    return Folds(a.reshape(folds, n, d, d), b.reshape(folds, n, d), yy.reshape(folds, n))
