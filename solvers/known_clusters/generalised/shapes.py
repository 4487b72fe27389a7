"""Shapes of a covariance of r coefficients, as lower triangular roots that are linear in tau."""

from __future__ import annotations

import numpy as np

from corsage.core.arrays import Floats
from corsage.solvers.known_clusters.variances.shapes import DIAGONAL, ONE

FIRST_DEVIATION, LEAST_START = 0.5, 0.3
"""Deviations, in standard units, where a search begins: at least so large, as 0 is stationary."""


def layouts(kind: str, r: int, told: Floats | None = None) -> Floats:
    """The matrices (q, r, r) of which a root is the sum, each times its number.

    They are 0 where coefficients are not `told` (r,): these do not differ.
    """
    there = np.ones((r, r)) if told is None else np.outer(told, told)
    if kind == ONE:
        return np.asarray((np.eye(r) * there)[None])
    rows, columns = (np.arange(r),) * 2 if kind == DIAGONAL else np.tril_indices(r)
    found = np.zeros((len(rows), r, r))
    found[np.arange(len(rows)), rows, columns] = there[rows, columns]
    return found


def numbers_of(kind: str, root: Floats) -> Floats:
    """tau of a root that another shape found, none of whose deviations is 0."""
    found = root.copy()
    own = np.diag(found)
    np.fill_diagonal(found, np.where(np.abs(own) < LEAST_START, LEAST_START, own))
    if kind == ONE:
        return np.array([np.diag(found).mean()])
    return np.diag(found).copy() if kind == DIAGONAL else found[np.tril_indices(len(found))]
