"""Quadratics that are tied to a centre, one user or cluster each, by their eigenvalues.

Lyu et al. 2022, (2.3), as mixed_model.py has it; S = (A + gamma I)^-1.

Where coordinates deviate from their centre only where they may (`Partial`), theta = w + D u, with a
diagonal D >= 0: coordinate c deviates from the centre w by D_c u_c, and where D_c is 0 it is the
centre's. With a cost |u|^2 / (2 rho) this is the random part of a mixed model: D_c is 1 where
coefficients vary between users (random) and 0 where they do not (fixed); with rho 1 and
D_c = gamma_c^-1/2 it is a strength by coordinate, which may be infinite.

    P = A - A D (DAD + I/rho)^-1 D A,    q = b - A D (DAD + I/rho)^-1 D b.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from corsage.core.arrays import Floats

ROUNDING = 10 * float(np.finfo(np.float64).eps)
"""Eigenvalues below this share of d times the largest are 0."""


@dataclass(frozen=True)
class Spectra:
    """Quadratics 1/2 x'Ax - b'x by eigenvalues W (n, d), vectors Q (n, d, d), and Q'b (n, d).

    There may be any number of leading axes; strengths have these.
    """

    values: Floats
    vectors: Floats
    slopes: Floats

    @classmethod
    def of(cls, a: Floats, b: Floats) -> Spectra:
        """Of A (n, d, d) and b (n, d); what is not 0 by rounding only is set to 0."""
        values, vectors = np.linalg.eigh(a)
        slopes = (b[..., None, :] @ vectors)[..., 0, :]
        smallest = ROUNDING * a.shape[-1] * np.maximum(values[..., -1:], 0.0)
        flat = values <= smallest
        values = np.where(flat, 0.0, values)
        # b = Ax has no slope where A is flat, but for what rounding turned A's vectors by.
        length = np.linalg.norm(_over(slopes, values), axis=-1, keepdims=True)
        slopes = np.where(flat & (np.abs(slopes) <= smallest * length), 0.0, slopes)
        return cls(values, vectors, slopes)

    def at(self, rows: Any) -> Spectra:
        """Some of them."""
        return Spectra(self.values[rows], self.vectors[rows], self.slopes[rows])

    def kept(self, gamma: ArrayLike) -> Floats:
        """gamma/(W + gamma): 1 where gamma is infinite, 0 where it is 0."""
        tie = np.asarray(gamma, np.float64)[..., None]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return np.where(tie > 0, 1 / (1 + self.values / tie), 0.0)

    def shrunk(self, gamma: ArrayLike) -> tuple[Floats, Floats]:
        """P = gamma (I - gamma S) and q = gamma S b, with S = (A + gamma I)^-1."""
        kept = self.kept(gamma)
        p = (self.vectors * (kept * self.values)[..., None, :]) @ self.vectors.mT
        return p, self._back(kept * self.slopes)

    def personal(self, gamma: ArrayLike, w: Floats) -> Floats:
        """S (b + gamma w); w at gamma = inf, the shortest minimiser A^+ b at gamma = 0."""
        tie = np.asarray(gamma, np.float64)[..., None]
        centre = (w[..., None, :] @ self.vectors)[..., 0, :]
        return self._back(_over(self.slopes, self.values + tie) + self.kept(gamma) * centre)

    def _back(self, x: Floats) -> Floats:
        """Q x."""
        return np.asarray((self.vectors @ x[..., None])[..., 0])


def _over(slopes: Floats, curvature: Floats) -> Floats:
    """Slopes over curvatures, 0 where there is no curvature."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where((curvature > 0) & (slopes != 0), slopes / curvature, 0.0)


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
