"""Arithmetic on long arrays, piece by piece: no second array of their size is made for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corsage.core.arrays import Array, Bools, Floats

PIECE_NUMBERS = 2**15
"""Numbers of a piece: two of them in double precision stay in a core's own cache."""


def pieces(size: int) -> Iterator[slice]:
    """The places of the pieces of so many numbers."""
    return (slice(i, min(i + PIECE_NUMBERS, size)) for i in range(0, size, PIECE_NUMBERS))


def finite(array: NDArray[Any]) -> bool:
    """Tell whether all numbers are finite."""
    flat = array.reshape(-1)
    return all(bool(np.isfinite(flat[piece]).all()) for piece in pieces(flat.size))


def finite_rows(rows: NDArray[Any]) -> Bools:
    """Mark the rows of finite numbers alone."""
    return np.array([True] * len(rows) if finite(rows) else [finite(row) for row in rows], bool)


def add_weighted(total: Floats | None, rows: Array, weights: Floats) -> Floats:
    """total + sum_u w_u rows_u, in double precision, into `total` itself if there is one.

    The users are summed first, in their order, whatever the length of the arrays.
    """
    if rows[0].size <= PIECE_NUMBERS:
        sums = np.einsum("u,u...->...", weights, rows, dtype=np.float64, casting="same_kind")
        return np.asarray(sums if total is None else total + sums)
    found = np.zeros(rows.shape[1:], np.float64) if total is None else total
    flat, each = found.reshape(-1), rows.reshape(len(rows), -1)
    one, sums = np.empty(PIECE_NUMBERS), np.empty(PIECE_NUMBERS)
    for piece in pieces(flat.size):
        own, now = one[: piece.stop - piece.start], sums[: piece.stop - piece.start]
        np.multiply(each[0, piece], weights[0], out=now, dtype=np.float64, casting="same_kind")
        for row, weight in zip(each[1:], weights[1:], strict=True):
            np.multiply(row[piece], weight, out=own, dtype=np.float64, casting="same_kind")
            now += own
        flat[piece] += now
    return found


def mean_of(parts: Sequence[tuple[float, Array]], like: Array) -> Array:
    """sum_k w_k array_k / sum_k w_k, in double precision, of the type of `like`."""
    whole = sum(weight for weight, _ in parts)
    found = np.empty(parts[0][1].shape, like.dtype)
    flat, each = found.reshape(-1), [(weight, array.reshape(-1)) for weight, array in parts]
    for piece in pieces(flat.size):
        sums = np.zeros(piece.stop - piece.start)
        for weight, array in each:
            sums += weight * array[piece].astype(np.float64)
        flat[piece] = sums / whole
    return found
