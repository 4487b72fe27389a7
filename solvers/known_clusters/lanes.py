"""Small matrices of very many units, with the units' axis last: each number is one long vector.

A library's product or factor of a 5 x 5 matrix costs a microsecond, nearly all of it the call. Here
a product of two numbers is one elementwise product over the units, which stays in the cache.
"""

from __future__ import annotations

import numpy as np

from corsage.core.arrays import Floats

WIDEST = 12
"""Rows up to which this is faster than a library's call a matrix."""
AT_ONCE = 4096
"""Units of a block."""


def lanes(rows: Floats) -> Floats:
    """Numbers (n, ...) with the units last."""
    return np.ascontiguousarray(np.moveaxis(rows, 0, -1))


def back(numbers: Floats) -> Floats:
    """The inverse of `lanes`."""
    return np.ascontiguousarray(np.moveaxis(numbers, -1, 0))


def dots(left: Floats, right: Floats) -> Floats:
    """left' right (r, s, n), of left (d, r, n) and right (d, s, n)."""
    out = np.empty((left.shape[1], *right.shape[1:]))
    term = np.empty(out.shape[1:])
    for i in range(len(out)):
        np.multiply(left[0, i], right[0], out=out[i])
        for k in range(1, len(left)):
            np.multiply(left[k, i], right[k], out=term)
            np.add(out[i], term, out=out[i])
    return out


def plus_one(k: Floats) -> Floats:
    """I + K (r, r, n), in its place."""
    for i in range(len(k)):
        k[i, i] += 1.0
    return k


def factor(k: Floats) -> Floats:
    """C with C C' = K (r, r, n), positive definite; above its diagonal nothing is meant."""
    c = k.copy()
    for j in range(len(c)):
        for i in range(j):
            c[j:, j] -= c[j:, i] * c[j, i]
        c[j, j] = np.sqrt(c[j, j])
        c[j + 1 :, j] /= c[j, j]
    return c


def solved(c: Floats, right: Floats) -> Floats:
    """C^-1 right (r, s, n), C being a factor."""
    x = right.copy()
    for j in range(len(c)):
        for i in range(j):
            x[j] -= c[j, i] * x[i]
        x[j] /= c[j, j]
    return x


def solved_back(c: Floats, right: Floats) -> Floats:
    """C'^-1 right (r, s, n), C being a factor."""
    x = right.copy()
    for j in range(len(c) - 1, -1, -1):
        for i in range(j + 1, len(c)):
            x[j] -= c[i, j] * x[i]
        x[j] /= c[j, j]
    return x
