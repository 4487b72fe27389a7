"""Checks of a sum-of-norms problem's numbers: each says in one line what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.core.errors import ConfigError, DataError

LARGEST_NUMBER, SMALLEST_NUMBER = 1e140, 1e-140
"""Numbers whose squares, and sums of squares, are numbers of double precision too."""


def number(value: object, name: str, most: float = np.inf) -> float:
    """A number from 0 to `most`."""
    wanted = f"{name}={value!r:.40}: it must be a number from 0 on"
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ConfigError(f"{wanted}.") from None
    if not found >= 0:
        raise ConfigError(f"{wanted}.")
    if found > most:
        raise ConfigError(f"{wanted}, {most:g} at most.")
    return found


def matrix(value: object, name: str) -> Floats:
    """Finite real numbers (N, d) in double precision, d >= 1."""
    try:
        found = np.asarray(value)
    except ValueError:
        raise DataError(f"{name}: rows of different lengths.") from None
    if found.ndim != 2 or not found.shape[1]:
        shape = "x".join(map(str, found.shape)) or "no"
        raise DataError(f"{name}: {shape} numbers; they must be N rows of d >= 1 numbers.")
    if found.dtype.kind not in "fiubO":
        raise DataError(f"{name}: {found.dtype} is no type of real numbers.")
    try:
        real = np.asarray(found, np.float64)
    except (TypeError, ValueError):
        raise DataError(f"{name}: not all are real numbers.") from None
    if not np.isfinite(real).all():
        row = int(np.flatnonzero(~np.isfinite(real).all(1))[0])
        raise DataError(f"{name}: row {row} has a number that is not finite; leave it out.")
    return real


def points(value: object) -> Floats:
    """Points (N, d) with distances whose squares can be computed."""
    found = matrix(value, "sum of norms: points")
    size = float(np.abs(found).max(initial=0.0))
    spread = float(np.ptp(found, axis=0).max()) if len(found) else 0.0
    if size > LARGEST_NUMBER or 0 < spread < SMALLEST_NUMBER:
        what = f"{size:.0e} large" if size > LARGEST_NUMBER else f"{spread:.0e} apart"
        raise DataError(f"sum of norms: points {what} have no squares; scale them.")
    return found


def shaped(value: object, name: str, shape: tuple[int, ...]) -> Floats:
    """Finite numbers of that shape."""
    found = matrix(value, f"sum of norms: {name}")
    if found.shape != shape:
        raise DataError(f"sum of norms: {name} are {found.shape}, not {shape}.")
    return found


def whole(value: Any, name: str) -> Ints:
    """Whole numbers (E,), as 64 bits: products of two users' numbers do not fit into 32."""
    found = np.asarray(value)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise DataError(f"edges: {name} must be whole numbers in one row.")
    return found.astype(np.int64, copy=False)


def positive(value: Any) -> Floats:
    """Positive numbers (E,), of which squares can be added up."""
    found = np.asarray(value)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "fiu"):
        raise DataError("edges: weights must be numbers in one row.")
    found = found.astype(np.float64, copy=False)
    if not np.all((found > 0) & (found <= LARGEST_NUMBER)):  # not a number is neither
        raise DataError(
            f"edges: weights must be positive, {LARGEST_NUMBER:g} at most; "
            "leave out pairs without a pull."
        )
    return found
