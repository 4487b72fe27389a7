"""Averages that a minority of bad users cannot take over, as functions of arrays alone.

n users send x_1, ..., x_n, one row each; w is what they were sent, and Delta_i = x_i - w.

- `clipped_mean`: updates longer than C are shortened to it,
  w + sum_i a_i Delta_i min(1, C/|Delta_i|) with the users' weights a_i (McMahan, Ramage, Talwar,
  Zhang 2018, flat clipping; as a defence Sun, Kairouz, Suresh, McMahan 2019:
  Delta_i / max(1, |Delta_i|/M)).
- `median`: in each coordinate the median (Yin, Chen, Ramchandran, Bartlett 2018, Definition 1).
- `trimmed_mean`: in each coordinate the mean without the k largest and the k smallest values, k a
  share beta of n (the same, Definition 2).
- `krum`: with f bad users among n >= 2f + 3, the score of i is s(i) = sum over i -> j of
  |x_i - x_j|^2, where i -> j are the n - f - 2 users nearest to i. Krum is the x_i of least score,
  Multi-Krum the mean of the m of least score (Blanchard, El Mhamdi, Guerraoui, Stainer 2017).

All but `clipped_mean` choose among what came, so they need no w and do not care where zero is
(`krum` takes w for precision only). They count each user once; only Multi-Krum's mean of the chosen
takes weights. Values may be as large as float32 allows: sums are in double precision.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from corsage.core.arrays import Array, Bools, Floats, Ints

BLOCK_NUMBERS = 2**19
"""Numbers that are worked on at once, so that they stay in the processor's cache."""
MOST_ASIDE = 0.3
"""The share of users that may be set aside."""
FEWEST = 4
"""Users among whom somebody can be far from all others."""
FAR_MODEL = 4.0
"""Median distances from the median of all models at which one says nothing of the others."""


def lengths(rows: Array, origin: Array) -> Floats:
    """|Delta_i| of each user; `origin` is one row for all, or one a user."""
    squares = np.zeros(len(rows))
    for block in blocks(rows):
        change = changes(rows, origin, block)
        squares += np.einsum("ij,ij->i", change, change)
    return np.sqrt(squares)


def clipped_mean(rows: Array, weights: Floats, origin: Array, limit: float) -> Array:
    """w + sum_i a_i Delta_i min(1, C/|Delta_i|), where the a_i are the weights' shares."""
    sizes = lengths(rows, origin)
    kept = np.minimum(1.0, np.divide(limit, sizes, out=np.ones_like(sizes), where=sizes > 0))
    share = kept * weights / weights.sum()
    found = np.empty(rows.shape[1:], rows.dtype)
    for block in blocks(rows):
        flat(found)[block] = flat(origin)[block] + share @ changes(rows, origin, block)
    return found


def median(rows: Array) -> Array:
    """The median of each coordinate; of an even number the mean of both in the middle."""
    return trimmed_mean(rows, (len(rows) - 1) // 2)


def trimmed_mean(rows: Array, cut: int) -> Array:
    """The mean of each coordinate without its `cut` largest and its `cut` smallest values."""
    if not 0 <= 2 * cut < len(rows):
        raise ValueError(f"{cut} cannot be cut off both ends of {len(rows)} values")
    found = np.empty(rows.shape[1:], rows.dtype)
    for block in blocks(rows):
        # Whole sorts of short contiguous lines are faster than partitions at two places.
        ordered = np.array(flat_rows(rows)[:, block].T, order="C")
        ordered.sort(axis=1)
        flat(found)[block] = ordered[:, cut : len(rows) - cut].mean(axis=1, dtype=np.float64)
    return found


def krum(rows: Array, bad: int, keep: int, origin: Array) -> Ints:
    """The `keep` users of least score with f = `bad`, in their order; of equal ones the first."""
    return least(scores(distances(rows, origin), bad), keep)


def distances(rows: Array, origin: Array) -> Floats:
    """|x_i - x_j|^2 of all pairs (n, n), by products of the updates.

    They are as exact as the updates are short: bad users far out do not spoil those of the others.
    """
    products = np.zeros((len(rows), len(rows)))
    for block in blocks(rows):
        change = changes(rows, origin, block)
        products += change @ change.T
    squares = np.diag(products)
    return np.maximum(squares[:, None] + squares - 2 * products, 0.0)


def scores(squares: Floats, bad: int) -> Floats:
    """s(i), the sum of |x_i - x_j|^2 over the n - f - 2 users j nearest to i, without i itself."""
    n = len(squares)
    if n < 2 * bad + 3:
        raise ValueError(f"krum with f={bad} needs {2 * bad + 3} users, not {n}")
    others = squares[~np.eye(n, dtype=bool)].reshape(n, n - 1)
    return np.asarray(np.sort(others, axis=1)[:, : n - bad - 2].sum(axis=1))


def least(values: Floats, number: int) -> Ints:
    """The places of the `number` least values, in their order."""
    return np.sort(np.argsort(values, kind="stable")[:number])


def outlying(rows: Array, times: float = 10.0, least: float = 0.0) -> Bools:
    """Users so many median distances from the median of all, which count as `least` each.

    Of 30% at most: of more the farthest. Without such users a mean over the rest is the plain one.
    """
    away = lengths(rows, median(rows))
    far = away > times * max(float(np.median(away)), least)
    far[np.argsort(-away, kind="stable")[int(MOST_ASIDE * len(rows)) :]] = False
    return np.asarray(far)


def outlying_in(rows: Array, labels: Ints) -> Bools:
    """The same within each cluster of four users and more: no two of three are most."""
    far = np.zeros(len(rows), bool)
    for cluster in np.flatnonzero(np.bincount(labels) >= FEWEST):
        far[labels == cluster] = outlying(rows[labels == cluster])
    return far


def weighted_mean(rows: Array, weights: Floats) -> Array:
    """The mean over the users, summed in double precision."""
    share = weights / weights.sum()
    found = np.einsum("u,u...->...", share, rows, dtype=np.float64, casting="same_kind")
    return np.asarray(found, rows.dtype)


def blocks(rows: Array) -> Iterator[slice]:
    """Pieces of the coordinates."""
    size, step = flat_rows(rows).shape[1], max(BLOCK_NUMBERS // len(rows), 1)
    return (slice(first, min(first + step, size)) for first in range(0, size, step))


def changes(rows: Array, origin: Array, block: slice) -> Floats:
    """Delta_i in some coordinates, in double precision."""
    start = flat_rows(origin) if origin.ndim == rows.ndim else flat(origin)[None]
    return np.subtract(flat_rows(rows)[:, block], start[:, block], dtype=np.float64)


def flat_rows(rows: Array) -> Array:
    """One row a user, each a vector; a number a user is a vector of one."""
    return rows.reshape(len(rows), -1)


def flat(array: Array) -> Array:
    """An array as a vector, of which writing changes the array."""
    return array.reshape(-1)
