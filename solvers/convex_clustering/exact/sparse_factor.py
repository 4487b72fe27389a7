"""Sparse factors of matrices with a d x d block for each user and each edge of one graph.

The order in which unknowns are eliminated, and where each block's entries lie in the matrix, depend
on the graph alone: they are found once, not once a factor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpbtrf, dpbtrs
from scipy.sparse import coo_array, csc_array
from scipy.sparse.linalg import SuperLU, splu

from corsage.core.arrays import Floats, Ints

Solve = Callable[[Floats], Floats]
"""From a right side (n, d) to the solution (n, d)."""
OPTIONS = {"SymmetricMode": True}


def symmetric_factor(matrix: csc_array, order: str = "MMD_AT_PLUS_A") -> SuperLU:
    """The sparse factor of a positive definite matrix."""
    return splu(matrix, order, diag_pivot_thresh=0.0, options=OPTIONS)


@dataclass(frozen=True)
class Pattern:
    """The places of the blocks.

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

    def factored(self, cross: Floats, own: Floats) -> Solve | None:
        """The solution for any right side; None if the matrix is singular."""
        try:
            factor = symmetric_factor(self.matrix(cross, own), "NATURAL")
        except RuntimeError:
            return None
        return lambda g: placed(g, self.place, self.d, factor.solve)


@dataclass(frozen=True)
class Band:
    """The same where neighbours are near in some order: Cholesky's factor of a band.

    LAPACK's is some twenty times as quick for each operation, and has no indices.

    Parameters
    ----------
    n, d, place : as above, with the places in which neighbours are near.
    width : of the band, the diagonal included.
    cross, own : where the entries of blocks lie; of a user's block those of the lower triangle.
    """

    n: int
    d: int
    place: Ints
    width: int
    cross: Ints
    own: Ints

    @classmethod
    def of(cls, i: Ints, j: Ints, place: Ints, far: int, d: int) -> Band:
        """That of the graph with these edges, whose users' places are `far` apart at most."""
        n, width, k = len(place), d * (far + 1), np.arange(d)
        i, j = place[i], place[j]
        row = d * np.maximum(i, j)[:, None, None] + k[:, None]
        column = d * np.minimum(i, j)[:, None, None] + k
        below, left = np.tril_indices(d)
        first = d * place[:, None]
        own = below - left + width * (first + left)
        return cls(n, d, place, width, row - column + width * column, own)

    def factored(self, cross: Floats, own: Floats) -> Solve | None:
        """The solution for any right side; None if the matrix is not positive definite."""
        data = np.zeros(self.width * self.n * self.d)
        data[self.cross] = cross
        below, left = np.tril_indices(self.d)
        data[self.own] = own[:, below, left]
        band = data.reshape(-1, self.width).T  # LAPACK's order
        factor, failed = dpbtrf(band, lower=1, overwrite_ab=1)
        if failed:
            return None
        return lambda g: placed(g, self.place, self.d, lambda b: dpbtrs(factor, b, lower=1)[0])


def placed(g: Floats, place: Ints, size: int, solve: Callable[[Floats], Floats]) -> Floats:
    """A solution (n, d) for a right side (n, d) of users in another order.

    It is one for all of it with blocks of size d, one for each column with blocks of size 1.
    """
    ordered = np.empty_like(g, order="C")
    ordered[place] = g
    return np.asarray(solve(ordered.reshape(len(g) * size, -1)).reshape(g.shape)[place])
