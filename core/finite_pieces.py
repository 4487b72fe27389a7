"""Checks of long arrays, piece by piece: no second array of their size is made for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corsage.core.arrays import Bools

PIECE_NUMBERS = 2**15
"""Numbers of a piece: two of them in double precision stay in a core's own cache."""


def pieces(size: int, rows: int = 1) -> Iterator[slice]:
    """The places of the pieces of so many numbers, of which there are some rows."""
    step = max(PIECE_NUMBERS // rows, 1)
    return (slice(i, min(i + step, size)) for i in range(0, size, step))


def finite(array: NDArray[Any]) -> bool:
    """Tell whether all numbers are finite."""
    flat = array.reshape(-1)
    return all(bool(np.isfinite(flat[piece]).all()) for piece in pieces(flat.size))


def finite_rows(rows: NDArray[Any]) -> Bools:
    """Mark the rows of finite numbers alone."""
    return np.array([True] * len(rows) if finite(rows) else [finite(row) for row in rows], bool)
