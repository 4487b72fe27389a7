"""Units with fewer records than coefficients: what they say, by as many rows as A has ranks.

With A = F'F (F of m rows, m < d) and b = F't, and K = I + F D F' = CC' of m rows, too,

    P = H'H,   q = H'h   with   H = C^-1 F,  h = C^-1 t,   yy - |t|^2 + |h|^2,   ld + log|K|:

those of tree.py, whose K has d rows, at m/d of the products.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.solvers.known_clusters.absorbed import (
    Absorbed,
    Derivative,
    Known,
    Level,
    Sums,
    forward,
    turned,
)
from corsage.solvers.known_clusters.lanes import AT_ONCE, WIDEST
from corsage.solvers.known_clusters.mixed_model import by_cluster
from corsage.solvers.known_clusters.spectra import Spectra

THIN = 0.5
"""Rows, as a share of the coefficients, up to which this is faster."""
OUTSIDE = 1e-10
"""A slope b that is this share away from what A reaches is no sum of records."""


@dataclass(frozen=True)
class Thin:
    """F (n, m, d) and t (n, m) of all units; rows that a unit has not are 0."""

    f: Floats
    t: Floats

    @classmethod
    def of(cls, users: Sums) -> Thin | None:
        """Of units whose records are few for their coefficients; None: there are others."""
        n, d = users.b.shape
        if d <= WIDEST or n > AT_ONCE:
            return None
        spectra = Spectra.of(users.a, users.b)
        m = int((spectra.values > 0).sum(1).max(initial=0))
        if m > THIN * d:
            return None
        values, vectors = spectra.values[:, d - m :], spectra.vectors[..., d - m :]
        roots = np.sqrt(np.maximum(values, 0.0))
        f = np.ascontiguousarray((vectors * roots[:, None]).mT)
        t = np.where(roots > 0, spectra.slopes[:, d - m :] / np.where(roots > 0, roots, 1.0), 0.0)
        away = np.linalg.norm((f.mT @ t[..., None])[..., 0] - users.b, axis=1)
        told = away <= OUTSIDE * np.linalg.norm(users.b, axis=1)
        return cls(f, t) if told.all() else None

    def at(self, rows: Ints) -> Thin:
        """Some units."""
        return Thin(self.f[rows], self.t[rows])

    def absorbed(self, below: Sums, root: Floats) -> ThinAbsorbed:
        """The units' own deviations integrated out, given their roots L (n, d, r)."""
        across = turned(self.f.mT, root).mT  # F L
        k = np.eye(self.f.shape[1]) + across @ across.mT
        c: Floats = np.linalg.cholesky(k).astype(np.float64, copy=False)
        rows, h = forward(c, self.f, self.t)
        yy = below.yy - np.square(self.t).sum(1) + np.square(h).sum(1)
        ld = below.ld + 2 * np.log(np.diagonal(c, 0, -2, -1)).sum(-1)
        return ThinAbsorbed(below, root, rows, h, yy, ld)


@dataclass(frozen=True)
class ThinAbsorbed:
    """What `Absorbed` is, of thin units: H (n, m, d), h (n, m), and yy and ld."""

    below: Sums
    root: Floats
    across: Floats
    h: Floats
    yy: Floats
    ld: Floats

    def summed(self, level: Level) -> Sums:
        """What the units above say."""
        d, parent, above = self.across.shape[-1], level.parent, level.above
        p, q = np.zeros((above, d, d)), np.zeros((above, d))
        for unit in np.unique(parent):
            rows = self.across[parent == unit].reshape(-1, d)
            p[unit] = rows.T @ rows
            q[unit] = self.h[parent == unit].reshape(-1) @ rows
        return Sums(p, q, *(by_cluster(part, parent, above) for part in (self.yy, self.ld)))

    def own(self, centre: Known) -> Known:
        """What is known of each unit's x, from what is known of its centre."""
        return Absorbed.of(self.below, self.root).own(centre)

    def derivative(self, level: Level, above: Known, sigma2: float) -> Derivative:
        """As of other units: Q = H'(I - H C H')H and s = H'(h - H m)."""
        s = np.empty((len(self.h), self.across.shape[-1]))
        inner = np.empty((*self.h.shape, self.h.shape[-1]))
        for unit in np.unique(level.parent):
            some = level.parent == unit
            own = self.across[some]
            inner[some] = np.eye(own.shape[1]) - own @ above.covariance[unit] @ own.mT
            left = self.h[some] - own @ above.mean[unit]
            s[some] = (left[:, None] @ own)[:, 0]
        q = self.across.mT @ (inner @ self.across)
        return Derivative(q, s, level.group, sigma2)
