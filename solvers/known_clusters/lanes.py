"""Small matrices of very many units, with the units' axis last: each number is one long vector.

A library's product or factor of a 5 x 5 matrix costs a microsecond, nearly all of it the call. Here
a product of two numbers is one elementwise product over the units, which stays in the cache.
"""

from __future__ import annotations

import numpy as np

from corsage.core.arrays import Floats, Ints

WIDEST = 12
"""Rows up to which this is faster than a library's call a matrix, if there are matrices enough."""
AT_ONCE = 4096
"""Units of a block."""


def narrow(units: int, rows: int) -> bool:
    """True if so many matrices are worked through faster in lanes than by a call each."""
    return rows <= WIDEST and units >= 2 * rows * (rows - 3)


def lanes(rows: Floats) -> Floats:
    """Numbers (n, ...) with the units last."""
    return np.ascontiguousarray(np.moveaxis(rows, 0, -1))


def back(numbers: Floats) -> Floats:
    """The inverse of `lanes`."""
    return np.ascontiguousarray(np.moveaxis(numbers, -1, 0))


def dots(left: Floats, right: Floats) -> Floats:
    """left' right (r, s, n), of left (d, r, n) and right (d, s, n)."""
    return np.asarray(np.einsum("krn,ksn->rsn", left, right))


def plus_one(k: Floats) -> Floats:
    """I + K (r, r, n), in its place."""
    for i in range(len(k)):
        k[i, i] += 1.0
    return k


def factor(k: Floats) -> Floats:
    """C with C C' = K (r, r, n), positive definite; above its diagonal nothing is meant."""
    c = k.copy()
    for j in range(len(c)):
        c[j:, j] -= np.einsum("ikn,kn->in", c[j:, :j], c[j, :j])
        c[j, j] = np.sqrt(c[j, j])
        c[j + 1 :, j] /= c[j, j]
    return c


def solved(c: Floats, right: Floats) -> Floats:
    """C^-1 right (r, s, n), C being a factor."""
    x = right.copy()
    for j in range(len(c)):
        x[j] -= np.einsum("kn,ksn->sn", c[j, :j], x[:j])
        x[j] /= c[j, j]
    return x


def solved_back(c: Floats, right: Floats) -> Floats:
    """C'^-1 right (r, s, n), C being a factor."""
    x = right.copy()
    for j in range(len(c) - 1, -1, -1):
        x[j] -= np.einsum("kn,ksn->sn", c[j + 1 :, j], x[j + 1 :])
        x[j] /= c[j, j]
    return x


def product(matrices: Floats, which: Ints, rows: Floats) -> Floats:
    """M' X (r, s, n), of rows X (d, s, n) and each unit's own of some matrices (g, d, r)."""
    if len(which) and (which == which[0]).all():
        one = matrices[which[0]]
        return np.asarray(
            (one.T @ rows.reshape(len(one), -1)).reshape(one.shape[1], *rows.shape[1:])
        )
    return dots(lanes(matrices[which]), rows)


def in_groups(values: Floats, group: Ints, count: int) -> Floats:
    """Sums (count, ...) of numbers (..., n) over the units of each group."""
    sums = np.zeros((*values.shape[:-1], count))
    if (group == group[0]).all():
        sums[..., group[0]] = values.sum(-1)
        return np.moveaxis(sums, -1, 0)
    if (group[1:] < group[:-1]).any():
        order = np.argsort(group, kind="stable")
        values, group = values[..., order], group[order]
    present, starts = np.unique(group, return_index=True)
    sums[..., present] = np.add.reduceat(values, starts, axis=-1)
    return np.moveaxis(sums, -1, 0)
