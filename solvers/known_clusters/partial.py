"""Quadratics whose coordinates deviate from their centre only where they may.

theta = w + D u, with a diagonal D >= 0: coordinate c deviates from the centre w by D_c u_c, and
where D_c is 0 it is the centre's. With a cost |u|^2 / (2 rho) this is the random part of a mixed
model: D_c is 1 where coefficients vary between users (random) and 0 where they do not (fixed); with
rho 1 and D_c = gamma_c^-1/2 it is a strength by coordinate, which may be infinite.

    P = A - A D (DAD + I/rho)^-1 D A,    q = b - A D (DAD + I/rho)^-1 D b.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from corsage.core.arrays import Floats
from corsage.solvers.known_clusters.spectra import Spectra


@dataclass(frozen=True)
class Partial:
    """Quadratics 1/2 x'Ax - b'x by what varies: eigenvalues of DAD, the slopes D b there, and A D.

    Parameters
    ----------
    part : of DAD and Db.
    across : A D times its eigenvectors (n, d, d).
    a, b : A and b themselves.
    reach : D, as the numbers (n, d) or (d,).
    """

    part: Spectra
    across: Floats
    a: Floats
    b: Floats
    reach: Floats

    @classmethod
    def of(cls, a: Floats, b: Floats, reach: Floats) -> Partial:
        """Of A (n, d, d) and b (n, d)."""
        inner = reach[..., :, None] * a * reach[..., None, :]
        part = Spectra.of(inner, b * reach)
        return cls(part, (a * reach[..., None, :]) @ part.vectors, a, b, reach)

    @property
    def values(self) -> Floats:
        """Eigenvalues of what varies; 0 for what does not."""
        return self.part.values

    @property
    def slopes(self) -> Floats:
        """Slopes of what varies, along its eigenvectors."""
        return self.part.slopes

    def at(self, rows: Any) -> Partial:
        """Some of them."""
        reach = np.broadcast_to(self.reach, self.b.shape)[rows]
        return Partial(self.part.at(rows), self.across[rows], self.a[rows], self.b[rows], reach)

    def shrunk(self, gamma: ArrayLike = 1.0) -> tuple[Floats, Floats]:
        """P and q with 1/rho = gamma > 0, perhaps infinite."""
        weight = 1 / (self.values + np.asarray(gamma, np.float64)[..., None])
        p = self.a - (self.across * weight[..., None, :]) @ self.across.mT
        return p, self.b - (self.across @ (weight * self.slopes)[..., None])[..., 0]

    def personal(self, w: Floats, gamma: ArrayLike = 1.0) -> Floats:
        """theta, given each one's centre w (n, d)."""
        rest = self.reach * (self.b - (self.a @ w[..., None])[..., 0])
        along = (rest[..., None, :] @ self.part.vectors)[..., 0, :]
        weight = 1 / (self.values + np.asarray(gamma, np.float64)[..., None])
        u = (self.part.vectors @ (weight * along)[..., None])[..., 0]
        return np.asarray(w + self.reach * u)

    def inverse(self) -> Floats:
        """S = D (I + DAD)^-1 D, which is (A + D^-2)^-1 where D is above 0 (n, d, d)."""
        root = self.reach[..., :, None] * self.part.vectors
        return np.asarray((root / (1 + self.values)[..., None, :]) @ root.mT)
