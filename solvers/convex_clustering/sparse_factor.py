"""Sparse factors of matrices with a d x d block for each user and each edge of one graph.

The order in which unknowns are eliminated, and where each block's entries lie in the matrix, depend
on the graph alone: they are found once, not once a factor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csc_array
from scipy.sparse.linalg import SuperLU, splu

from corsage.core.arrays import Floats, Ints

OPTIONS = {"SymmetricMode": True}


def symmetric_factor(matrix: csc_array, order: str = "MMD_AT_PLUS_A") -> SuperLU:
    """The sparse factor of a positive definite matrix."""
    return splu(matrix, order, diag_pivot_thresh=0.0, options=OPTIONS)


@dataclass(frozen=True)
class Pattern:
    """Where the blocks lie.

    Parameters
    ----------
    n, d : the number of blocks in a row, and their size.
    place : the place of each user in the order of elimination, (n,).
    at : where entry (k, l) of each block lies, edges (i, j), edges (j, i), users; (2 E + n, d, d).
    rows, starts : those of the CSC format.
    """

    n: int
    d: int
    place: Ints
    at: Ints
    rows: NDArray[np.int32]
    starts: NDArray[np.int32]

    @classmethod
    def of(cls, i: Ints, j: Ints, place: Ints, d: int) -> Pattern:
        """That of the graph with these edges."""
        n, i, j = len(place), place[i], place[j]
        rows, columns = np.concatenate([i, j, place]), np.concatenate([j, i, place])
        number = np.arange(1, len(rows) + 1)
        matrix = coo_array((number, (rows, columns)), shape=(n, n)).tocsc()
        matrix.sort_indices()
        count = np.diff(matrix.indptr)
        column = np.repeat(np.arange(n), count)
        begin = d * (d - 1) * matrix.indptr[column] + d * np.arange(len(rows))
        k = np.arange(d)
        at = begin[:, None, None] + k[:, None] + (d * count[column])[:, None, None] * k
        entries = np.empty(len(rows) * d * d, np.int32)
        entries[at] = (d * matrix.indices)[:, None, None] + k[:, None]
        starts = np.append(
            d * d * matrix.indptr[:-1, None] + d * count[:, None] * k, len(entries)
        ).astype(np.int32)
        found = np.empty_like(at)
        found[matrix.data - 1] = at
        return cls(n, d, place, found, entries, starts)

    def matrix(self, cross: Floats, own: Floats) -> csc_array:
        """The matrix with the symmetric blocks `cross` (E, d, d) and `own` (n, d, d)."""
        data, edges = np.empty(self.at.size), len(cross)
        data[self.at[:edges]] = cross
        data[self.at[edges : 2 * edges]] = cross
        data[self.at[2 * edges :]] = own
        size = self.n * self.d
        return csc_array((data, self.rows, self.starts), shape=(size, size))

    def solve(self, factor: SuperLU, g: Floats) -> Floats:
        """The solution (n, d) for a right side (n, d), by the factor of such a matrix."""
        ordered = np.empty_like(g, order="C")
        ordered[self.place] = g
        return np.asarray(factor.solve(ordered.ravel()).reshape(g.shape)[self.place])
