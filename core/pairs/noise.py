"""Noise of the difference of two rows, user by user, from the sums of their test samples."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.core.measures import ACCURACY, RMSE, Measure
from corsage.core.seeding import generator

FEWEST_SUMS = 8
"""Of fewer sums of several samples the spread is hardly known: nothing is said of it."""
NORMAL_QUANTILE = 1.645
"""Standard errors of a difference that chance exceeds in one case of twenty."""


def number(n: int, most: int, least: int) -> int:
    """The sums of n samples."""
    return min(most, n // least)


@lru_cache(maxsize=4096)
def dealt(n: int, most: int, least: int) -> Ints:
    """The sum that each of n samples goes to; where there are several in one, at random."""
    count = max(number(n, most, least), 1)
    order = np.arange(n) if count == n else generator(n, "sums of samples").permutation(n)
    return np.asarray(order % count, np.int64)


@dataclass(frozen=True)
class Sums:
    """A row's sums, as its result has them.

    Parameters
    ----------
    places : each user's place in what follows.
    rows : the sums (users, sums); NaN of who has reported none.
    sizes : their test samples.
    least : samples of a sum, at least.
    """

    places: Mapping[str, int]
    rows: Floats
    sizes: Ints
    least: int


def sums_of(result: Mapping[str, Any]) -> Sums | None:
    """The sums in a result; None in one that has none, or damaged ones."""
    found, users = result.get("outcomes"), list(result["per_user"])
    if not found:
        return None
    try:
        shape, least = (len(users), int(found["sums"])), max(int(found["least"]), 1)
        size = 4 * shape[0] * shape[1]
        raw = zlib.decompressobj().decompress(base64.b64decode(found["packed"]), size + 1)
        rows = np.frombuffer(raw, "<f4").astype(np.float64).reshape(shape)
        sizes = np.array([result["test_sizes"][user] for user in users], np.int64)
    except (KeyError, TypeError, ValueError, OverflowError, zlib.error):
        return None
    return Sums({user: place for place, user in enumerate(users)}, rows, sizes, least)


Side = tuple[Sums, Floats]
"""A row's sums, and the values of the users that are asked about."""


def paired_errors(measure: Measure, users: Sequence[str], one: Side, other: Side) -> Floats:
    """The standard errors of the differences of users' two values; NaN where nothing says them.

    Of n differences of one sample each it is McNemar's; of shares half a sample is added that one
    row alone has right, and half a one that the other has (Agresti and Min 2005), so that rows that
    differ nowhere are not surely equal. With few sums it is larger, by as much as Student's
    quantile is larger than the normal one.
    """
    found, least = np.full(len(users), np.nan), one[0].least
    at, rows = zip(*(rows_of(measure, users, side) for side in (one, other)), strict=True)
    n = one[0].sizes[at[0]]
    if rows[0].shape != rows[1].shape or (n != other[0].sizes[at[1]]).any():
        return found
    apart = rows[0] - rows[1]
    for size in np.unique(n).tolist():
        same, count = np.flatnonzero(n == size), number(size, apart.shape[1], least)
        if count < (2 if least == 1 else FEWEST_SUMS):
            continue
        samples = np.bincount(dealt(size, apart.shape[1], least), minlength=count)
        own = apart[same, :count]
        away = own - samples * (own.sum(1, keepdims=True) / size)
        square = np.square(away).sum(1) * count / (count - 1) + (measure is ACCURACY)
        found[same] = np.sqrt(square) / size * widened(count - 1)
    return found


def rows_of(measure: Measure, users: Sequence[str], side: Side) -> tuple[Ints, Floats]:
    """The places of users in a row's sums, and these times what the measure changes with them.

    An RMSE is the root of a mean: it changes by half as much, over itself.
    """
    sums, values = side
    at = np.array([sums.places[user] for user in users], np.int64)
    if measure is not RMSE:
        return at, sums.rows[at]
    slope = np.divide(0.5, values, out=np.zeros_like(values), where=values > 0)
    return at, sums.rows[at] * slope[:, None]


def widened(freedom: int) -> float:
    """Student's quantile of one case in twenty, over the normal one (by Cornish and Fisher)."""
    z, v = NORMAL_QUANTILE, freedom
    first = (z**2 + 1) / (4 * v)
    second = (5 * z**4 + 16 * z**2 + 3) / (96 * v**2)
    return 1 + first + second + (3 * z**6 + 19 * z**4 + 17 * z**2 - 15) / (384 * v**3)
