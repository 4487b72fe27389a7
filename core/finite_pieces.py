"""Arithmetic on long arrays, piece by piece: no second array of their size is made for it.

Sums over users depend on no order, nor on parts in which they are added. A sum is two doubles,
`high` and `low`: the double next to it, and what that leaves out (Knuth's TwoSum). Nothing is lost
of single precision within a factor of 10^18: of values that are multiples of 2^-104 of their sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corsage.core.arrays import Array, Bools, Floats

PIECE_NUMBERS = 2**15
"""Numbers of a piece: two of them in double precision stay in a core's own cache."""


def pieces(size: int, rows: int = 1) -> Iterator[slice]:
    """The places of the pieces of so many numbers, of which there are some rows."""
    step = max(2 * PIECE_NUMBERS // rows, 1) if rows > 1 else PIECE_NUMBERS
    return (slice(i, min(i + step, size)) for i in range(0, size, step))


def finite(array: NDArray[Any], most: float = np.inf) -> bool:
    """Tell whether all numbers are finite, or smaller than so much."""
    flat = array.reshape(-1)
    return all(bool((np.abs(flat[piece]) < most).all()) for piece in pieces(flat.size))


def finite_rows(rows: NDArray[Any], most: float = np.inf) -> Bools:
    """Mark the rows of such numbers alone."""
    fine = [True] * len(rows) if finite(rows, most) else [finite(row, most) for row in rows]
    return np.array(fine, bool)


def added(terms: Floats) -> tuple[Floats, Floats]:
    """The sum of rows (n, P) as high and low; the rows are written over."""
    high, n = terms, len(terms)
    low = np.zeros((n, terms.shape[1]))
    while n > 1:
        k = n // 2
        n -= k
        a, b = high[:k], high[n : n + k]
        lost = low[:k]
        lost += low[n : n + k]
        s = a + b
        t = s - a
        b -= t  # b - (s - a)
        np.subtract(s, t, out=t)
        a -= t  # a - (s - (s - a))
        lost += b
        lost += a
        np.add(s, lost, out=a)
        s -= a
        lost += s
    return high[0], low[0]


def summed(rows: Array, weights: Floats) -> tuple[Floats, Floats | None]:
    """The sum of w_i times rows (n, P) as high and low; there is no low where high is exact.

    With whole weights, numbers of single precision that are not too unlike in size are multiples
    of one that goes into their sum less than 2^53 times: in double precision any order is exact.
    """
    if len(rows) == 1:
        return np.multiply(rows[0], weights[0], dtype=np.float64) + 0.0, None  # no sum is -0
    if rows.dtype != np.float32 or (weights % 1).any():
        return added(np.multiply(rows, weights[:, None], dtype=np.float64))
    size = np.abs(rows)
    least, most = (ends.astype(np.float64) for ends in (size.min(0), size.max(0)))
    exact = weights.sum() * most <= 2.0**28 * least
    high = weights @ rows + 0.0
    if exact.all():  # NaN is not
        return high, None
    low = np.zeros(rows.shape[1])
    terms = np.multiply(rows[:, ~exact], weights[:, None], dtype=np.float64)
    high[~exact], low[~exact] = added(terms)
    return high, low


class ExactSum:
    """A sum over users: `high`, and of each piece that it leaves anything out of, `low`.

    Of large models these are few: their sum takes hardly more than one array in double precision.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.high = np.zeros(shape)
        self.low: dict[int, Floats] = {}

    def add(self, rows: Array, weights: Floats) -> ExactSum:
        """Add sum_u w_u rows_u; what `low` is of does not depend on how many they are."""
        flat, each = self.high.reshape(-1), rows.reshape(len(rows), -1)
        for whole in pieces(flat.size):
            for part in pieces(len(flat[whole]), len(rows) + 2):
                high, low = summed(each[:, whole][:, part], weights)
                before, left = flat[whole][part], self.low.get(whole.start)
                both = before + high
                exact = (both - before == high) & (both - high == before)
                if low is None and left is None and exact.all():
                    before[:] = both
                    continue
                if left is None:
                    left = self.low[whole.start] = np.zeros(len(flat[whole]))
                terms = [one for one in (before, left[part], high, low) if one is not None]
                before[:], left[part] = added(np.stack(terms))
        return self

    def rows(self) -> Floats:
        """High and low, (2, ...)."""
        found = np.stack((self.high, np.zeros(self.high.shape)))
        for start, low in self.low.items():
            found[1].reshape(-1)[start : start + len(low)] = low
        return found

    def mean(self, weight: float, dtype: np.dtype[Any]) -> NDArray[Any]:
        """The sum by all weights; `high` is the double next to the sum."""
        found = np.empty(self.high.shape, dtype)
        np.divide(self.high, weight, out=found, casting="same_kind")
        return found


def mean_of(
    parts: Sequence[tuple[float, Array]], weight: float, dtype: np.dtype[Any]
) -> NDArray[Any]:
    """sum_k w_k sum_i rows_ki / weight, of rows (n_k, ...): those of users, or high and low."""
    found = np.empty(parts[0][1].shape[1:], dtype)
    flat, each = found.reshape(-1), [rows.reshape(len(rows), -1) for _, rows in parts]
    weights = np.repeat([w for w, _ in parts], [len(rows) for rows in each])
    for piece in pieces(flat.size, len(weights)):
        rows = np.concatenate([one[:, piece] for one in each])
        flat[piece] = summed(rows, weights)[0] / weight
    return found
