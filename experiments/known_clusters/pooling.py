"""The rivals of personal models: one model for all, one a cluster, one a user, one centre.

Lyu et al. 2022, section 6.1; quadratics 1/2 theta'A_i theta - b_i'theta as in `mixed_model`.

The paper's two remarks on better estimators come to little. The one of Proposition 5.3, best linear
unbiased given all data, is the minimiser of (5.2) itself. That of Proposition 5.4, which shrinks
the mean of the others as James and Stein do, gains O(d/n) (`mean_shrunk`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.core.seeding import generator
from corsage.solvers.known_clusters.folds import HELD_OUT_FOLDS, Folds, dealt, solved, sums_in
from corsage.solvers.known_clusters.mixed_model import personal, shrunk

T = TypeVar("T")


def single(a: Floats, b: Floats) -> Floats:
    """One model for all (d,): (sum A_i)^+ sum b_i."""
    return solved(a.sum(0), b.sum(0))


def local(a: Floats, b: Floats) -> Floats:
    """One model a user (n, d): A_i^+ b_i."""
    return solved(a, b)


def single_cluster(a: Floats, b: Floats, strength: float) -> Floats:
    """Personal models (n, d) tied to one centre by lambda^sc: the closed form of section 6.1.

    Its (I - lambda/n sum S_i)^-1 (1/n sum S_i b_i) is (sum P_i)^+ sum q_i.
    """
    p, q = shrunk(a, b, strength)
    centre = solved(p.sum(0), q.sum(0))
    return personal(a, b, strength, np.broadcast_to(centre, b.shape))


def fold_sums(
    x: Floats, y: Floats, user: Ints, n: int, seed: int, folds: int = HELD_OUT_FOLDS
) -> Folds:
    """Deal each user's records over the folds, beginning with a fold of its own.

    x (N, d), y (N,), `user` (N,) whose they are. A user with fewer records than folds leaves out
    one at a time; with a single record it is at times predicted from its centre alone, as a user
    without data would be. The random beginnings keep the folds of such users equal in size.
    """
    rng = generator(seed, "folds")
    draws = rng.random(len(user))
    return sums_in(x, y, user, dealt(user, draws, rng.integers(folds, size=n), folds), n, folds)


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
