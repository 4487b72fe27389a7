"""Shapes of a level's covariances: one variance, one a coefficient, or any; one scale a cluster.

D = L L' with a root L that is linear in its numbers x, so that no x is impossible, and variances of
0 are points like any other:

    one        L = x I
    diagonal   L = diag(x)
    full       L lower triangular
    apart      L_g = z_g L: the covariance of each group (cluster) has a size of its own
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from corsage.core.arrays import Floats, Ints

ONE, DIAGONAL, FULL = "one", "diagonal", "full"


@dataclass(frozen=True)
class Shape:
    """The covariances of one level.

    Parameters
    ----------
    kind : of L: one, diagonal or full.
    varies : the coefficients that vary (r,), of d.
    d : how many there are.
    groups : sizes apart; 1: one covariance for all units.
    turn : of a full covariance, L = turn^-1 (lower triangular): the numbers of the first row are
        those of the first coefficient in coordinates turn x (r, r); None: in those of x.
    """

    kind: str
    varies: Ints
    d: int
    groups: int = 1
    turn: Floats | None = None

    @property
    def inner(self) -> int:
        """Numbers of L."""
        r = len(self.varies)
        return {ONE: min(r, 1), DIAGONAL: r, FULL: r * (r + 1) // 2}[self.kind]

    @property
    def size(self) -> int:
        """Numbers in all: those of L, and with groups z, one of which is one too many.

        None where nothing varies.
        """
        return self.inner + (self.groups if self.groups > 1 and self.inner else 0)

    @cached_property
    def basis(self) -> Floats:
        """dL/dx (inner, d, r)."""
        r = len(self.varies)
        low, across = np.tril_indices(r) if self.kind == FULL else (np.arange(r), np.arange(r))
        found = np.zeros((self.inner, self.d, r))
        number = np.arange(len(low)) if self.kind != ONE else np.zeros(r, np.int64)
        found[number, self.varies[low], across] = 1.0
        if self.turn is not None:
            found[:, self.varies] = np.linalg.inv(self.turn) @ found[:, self.varies]
        return found

    def roots(self, x: Floats) -> Floats:
        """L (g, d, r)."""
        root = np.tensordot(x[: self.inner], self.basis, 1)
        return np.asarray(self._sizes(x)[:, None, None] * root) if self.groups > 1 else root[None]

    def directions(self, x: Floats) -> Floats:
        """dL/dx (size, g, d, r)."""
        if self.groups == 1:
            return self.basis[:, None]
        inner = self._sizes(x)[None, :, None, None] * self.basis[:, None]
        root = np.tensordot(x[: self.inner], self.basis, 1)
        return np.concatenate([inner, np.eye(self.groups)[:, :, None, None] * root])

    def lines(self, x: Floats) -> tuple[Floats, Floats]:
        """The diagonals of L (g, r) and of dL/dx (size, g, r), where L has nothing beside them."""
        r = len(self.varies)
        basis = np.ones((self.inner, r)) if self.kind == ONE else np.eye(r)
        line = x[: self.inner] @ basis
        if self.groups == 1:
            return line[None], basis[:, None]
        sizes = self._sizes(x)
        inner = sizes[:, None] * basis[:, None]
        return sizes[:, None] * line, np.concatenate(
            [inner, np.eye(self.groups)[:, :, None] * line]
        )

    def numbers(self, root: Floats) -> Floats:
        """x of the covariance L L' (d, d) that is nearest to a given root's in this shape."""
        r = len(self.varies)
        covariance = (root @ root.T)[np.ix_(self.varies, self.varies)]
        if self.turn is not None:
            covariance = self.turn @ covariance @ self.turn.T
        lengths = np.sqrt(np.diag(covariance))
        if self.kind == ONE and r:
            inner = np.array([np.sqrt(np.mean(np.square(lengths)))])
        elif self.kind == DIAGONAL or not r:
            inner = lengths
        else:
            floor = 1e-12 * max(float(np.trace(covariance)) / r, 1e-300)
            inner = np.linalg.cholesky(covariance + floor * np.eye(r))[np.tril_indices(r)]
        return np.concatenate([inner, np.ones(self.size - self.inner)])

    def _sizes(self, x: Floats) -> Floats:
        return x[self.inner :] if self.size > self.inner else np.ones(self.groups)
