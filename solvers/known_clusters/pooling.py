"""What personal models are compared with: one model for all, one a cluster, one a user, one centre.

Lyu et al. 2022, section 6.1; quadratics 1/2 theta'A_i theta - b_i'theta as in `mixed_model`.

The paper's two remarks on better estimators come to little. The one of Proposition 5.3, best linear
unbiased given all data, is the minimiser of (5.2) itself. That of Proposition 5.4, which shrinks
the mean of the others as James and Stein do, gains O(d/n) (`mean_shrunk`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from corsage.core.arrays import Floats, Ints
from corsage.core.seeding import generator, uniforms
from corsage.solvers.known_clusters.mixed_model import by_cluster, personal, shrunk

SINGLE_CENTRE_GRID: Floats = np.linspace(0.01, 2, 20)
"""lambda^sc as section 6.1 has it."""
FOLDS = 5
T = TypeVar("T")


def single(a: Floats, b: Floats) -> Floats:
    """One model for all (d,): (sum A_i)^+ sum b_i."""
    return solved(a.sum(0), b.sum(0))


def cluster_models(a: Floats, b: Floats, cluster: Ints, k: int) -> Floats:
    """One model a cluster (k, d): its sums' shortest minimiser, 0 for a cluster without users."""
    return solved(by_cluster(a, cluster, k), by_cluster(b, cluster, k))


def local(a: Floats, b: Floats) -> Floats:
    """One model a user (n, d): A_i^+ b_i."""
    return solved(a, b)


def solved(a: Floats, b: Floats) -> Floats:
    """A^+ b, over any leading axes."""
    return personal(a, b, 0.0, np.zeros_like(b))


def single_cluster(a: Floats, b: Floats, strength: float) -> Floats:
    """Personal models (n, d) tied to one centre by lambda^sc: the closed form of section 6.1.

    Its (I - lambda/n sum S_i)^-1 (1/n sum S_i b_i) is (sum P_i)^+ sum q_i.
    """
    p, q = shrunk(a, b, strength)
    centre = solved(p.sum(0), q.sum(0))
    return personal(a, b, strength, np.broadcast_to(centre, b.shape))


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


def fold_sums(x: Floats, y: Floats, user: Ints, n: int, seed: int, folds: int = FOLDS) -> Folds:
    """Deal each user's records over the folds, beginning with a fold of its own.

    x (N, d), y (N,), `user` (N,) whose they are. A user with fewer records than folds leaves out
    one at a time; with a single record it is at times predicted from its centre alone, as a user
    without data would be. The random beginnings keep the folds of such users equal in size.
    """
    rng = generator(seed, "folds")
    draws = rng.random(len(user))
    return sums_of_folds(x, y, user, draws, rng.integers(folds, size=n), folds)


def keyed_folds(x: Floats, y: Floats, counts: Ints, keys: NDArray[np.uint64]) -> Folds:
    """The same where each user draws for itself, by its key; records are in the users' order."""
    user = np.repeat(np.arange(len(keys)), counts)
    place = np.arange(len(user)) - np.repeat(np.cumsum(counts) - counts, counts)
    draws = np.empty(len(user))
    for number in range(int(counts.max())):
        draws[place == number] = uniforms(keys[user[place == number]], number)
    return sums_of_folds(x, y, user, draws, (uniforms(keys, -1) * FOLDS).astype(np.int64))


def sums_of_folds(
    x: Floats, y: Floats, user: Ints, draws: Floats, starts: Ints, folds: int = FOLDS
) -> Folds:
    """The sums where a user's records go to the folds in the order of their `draws` (N,).

    The first one goes to the fold `starts` (n,).
    """
    n, d = len(starts), x.shape[1]
    order = np.lexsort((draws, user))
    counts = np.bincount(user, minlength=n)
    place = np.arange(len(user)) - np.repeat(np.cumsum(counts) - counts, counts)
    fold = np.empty(len(user), np.int64)
    fold[order] = (place + np.repeat(starts, counts)) % folds
    cell = fold * n + user
    a = by_cluster(x[:, :, None] * x[:, None, :], cell, folds * n)
    b, yy = by_cluster(x * y[:, None], cell, folds * n), by_cluster(np.square(y), cell, folds * n)
    return Folds(a.reshape(folds, n, d, d), b.reshape(folds, n, d), yy.reshape(folds, n))


def cross_validated(
    held: Folds, candidates: Sequence[T], fit: Callable[[Floats, Floats, T], Floats]
) -> T:
    """The candidate with the least squared error on records that `fit(A, b, candidate)` leaves out.

    `fit` gives the personal models (n, d) of the sums that it is given.
    """
    errors = np.zeros(len(candidates))
    for fold, (a, b) in enumerate(held.rest):
        for place, candidate in enumerate(candidates):
            errors[place] += held.errors(fold, fit(a, b, candidate))
    return candidates[int(errors.argmin())]


# The remark of section 5.1: y_i ~ N(theta_i, I), theta_i ~ N(thetabar, I), one cluster.


def unbiased(y: Floats, shrink: Callable[[Floats], Floats] = lambda mean: mean) -> Floats:
    """The best linear unbiased theta_i (n, d) from y (n, d), A.12 with its weights put right.

    (n+1)/(2n) y_i + (n-1)/(2n) shrink(mean of the others).
    """
    n = len(y)
    others = (y.sum(0) - y) / (n - 1)
    return (n + 1) / (2 * n) * y + (n - 1) / (2 * n) * shrink(others)


def mean_shrunk(y: Floats) -> Floats:
    """The same with the others' mean shrunk as James and Stein do, towards 0.

    That mean has the variance 2/(n-1) a coordinate, so the squared error falls by at most
    (d-2)(n-1)/(2n^2) (at thetabar = 0), of about d/2: nothing at the paper's n = 400.
    """
    return unbiased(y, lambda others: james_stein(others, 2 / (len(y) - 1)))


def james_stein(y: Floats, variance: float = 1.0) -> Floats:
    """Positive-part James-Stein: (1 - (d-2) variance/|y|^2)_+ y for y (..., d); y if d < 3."""
    pull = max(y.shape[-1] - 2, 0) * variance
    length = np.square(y).sum(-1, keepdims=True)
    return np.asarray(y * (1 - pull / np.maximum(length, pull or 1.0)))
