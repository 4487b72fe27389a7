"""Noise of the difference of two rows of the table, which are judged on the same test samples.

A user reports of each row what its measure adds up, in some 64 sums: of one sample each, or of
several, which are dealt to the sums alike in every row. How the differences of two rows' sums
spread is the noise of the rows' difference, whatever samples that are hard for both add to either.
So rows of any two evaluations can be compared, and nothing is held for the next one.

Errors of numbers leave a device in sums of five samples at least: one alone could tell a label.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.core.counts import unknown
from corsage.core.measures import ACCURACY, RMSE, Measure
from corsage.core.messages.replies import Replies
from corsage.core.messages.wire import OUTCOMES
from corsage.core.seeding import generator

MOST_SUMS = 64
"""A spread of so many is known to 9%: more would say no more."""
DEVICE_SAMPLES = 5
"""Samples of a sum of errors of numbers that leaves a device, at least."""
FEWEST_SUMS = 8
"""Of fewer sums of several samples the spread is hardly known: such rows are not paired."""
LARGEST_SUM = 1e14
"""A sum is cut there: models that err so far are told apart by anything."""
NORMAL_QUANTILE = 1.645


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


def number(n: int, most: int, least: int) -> int:
    """The sums of n samples."""
    return min(most, n // least)


@lru_cache(maxsize=4096)
def dealt(n: int, most: int, least: int) -> Ints:
    """The sum that each of n samples goes to; where there are several in one, at random."""
    count = max(number(n, most, least), 1)
    order = np.arange(n) if count == n else generator(n, "sums of samples").permutation(n)
    return np.asarray(order % count, np.int64)


def wanted(measure: Measure, sizes: Collection[int]) -> int:
    """The sums that users are asked for; 0 where the measure adds nothing up."""
    return 0 if measure.error is unknown else min(MOST_SUMS, max(sizes, default=0))


def least_samples(measure: Measure, at_home: bool) -> int:
    """The samples of a sum, at least: right answers are bits, and in a simulation all is there."""
    return 1 if at_home or measure is ACCURACY else DEVICE_SAMPLES


def packed(
    replies: Replies, measure: Measure, users: Sequence[str], at_home: bool
) -> dict[str, Any]:
    """The users' sums of an evaluation as a result has them, one user after the other.

    Who was evaluated before, as it was at work, has none.
    """
    rows = replies.rows[OUTCOMES]
    place = {user: row for row, user in enumerate(replies.users[: len(rows)])}
    rows = np.concatenate([rows, np.full_like(rows[:1], np.nan)])
    found = rows[[place.get(user, -1) for user in users]].astype("<f4")
    text = base64.b64encode(zlib.compress(found.tobytes(), 1)).decode()
    return {"sums": found.shape[1], "least": least_samples(measure, at_home), "packed": text}


def sums_of(result: Mapping[str, Any]) -> Sums | None:
    """The sums in a result; None in one that has none, as of older versions."""
    found, users = result.get("outcomes"), list(result["per_user"])
    if not found:
        return None
    flat = np.frombuffer(zlib.decompress(base64.b64decode(found["packed"])), "<f4")
    if len(flat) != len(users) * found["sums"]:
        return None  # a summary of very many users names but some
    sizes = np.array([result["test_sizes"][user] for user in users], np.int64)
    places = {user: place for place, user in enumerate(users)}
    rows = flat.astype(np.float64).reshape(len(users), -1)
    return Sums(places, rows, sizes, int(found["least"]))


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
