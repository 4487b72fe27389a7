"""Blocks of units with their own deviations integrated out, in the layout that is fastest for them.

K, P and q are those of tree.py, Q and s those of absorbed.py. With K = CC' and G' = C^-1 L'A it is
P = A - GG'. Very many units with few coefficients lie in lanes (lanes.py), others one by one.

Units with fewer records than coefficients say the same by as many rows as A has ranks. With A = FF'
(F of m columns, m < d) and b = Ft, and K = I + F'DF = CC' of m rows, too,

    P = GG',   q = Gh   with   G' = C^-1 F',  h = C^-1 t,   yy - |t|^2 + |h|^2,   ld + log|K|,

at m/d of the products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.solvers.known_clusters.lanes import (
    AT_ONCE,
    WIDEST,
    dots,
    factor,
    in_groups,
    lanes,
    plus_one,
    product,
    solved,
)
from corsage.solvers.known_clusters.mixed_model import by_cluster
from corsage.solvers.known_clusters.spectra import Spectra

THIN_SHARE = 0.5
"""Rows, as a share of the coefficients, up to which `Thin` is faster."""
OUTSIDE = 1e-10
"""A slope b that is this share away from what A reaches is no sum of records."""


class Sums(NamedTuple):
    """Sums of units for their coefficients: A (n, d, d), b (n, d), yy (n,) and ld (n,)."""

    a: Floats
    b: Floats
    yy: Floats
    ld: Floats

    @classmethod
    def of(cls, a: Floats, b: Floats, yy: Floats) -> Sums:
        """Of users: nothing is integrated out yet."""
        return cls(a, b, yy, np.zeros(len(b)))

    def at(self, rows: Ints) -> Sums:
        """Some units."""
        return Sums(*(np.ascontiguousarray(part[rows]) for part in self))


class Block(Protocol):
    """Some units."""

    def summed(self, parent: Ints, above: int) -> Sums:
        """Sums of what they say over those below each of so many units above."""

    def slope(self, parent: Ints, mean: Floats, covariance: Floats) -> tuple[Floats, Floats]:
        """Q (d, d, n) and s (d, n), given what is known of the units above."""


@dataclass(frozen=True)
class InLanes:
    """P (d, d, n), q (d, n), yy (n,) and ld (n,)."""

    p: Floats
    q: Floats
    yy: Floats
    ld: Floats

    @classmethod
    def of(cls, below: Sums, roots: Floats, group: Ints) -> InLanes | None:
        """Units with the roots (g, d, r) of their groups; None where rounding leaves no factor."""
        a, b = lanes(below.a), lanes(below.b)[:, None]
        la = product(roots, group, a)
        k = plus_one(product(roots, group, np.ascontiguousarray(np.swapaxes(la, 0, 1))))
        with np.errstate(invalid="ignore", divide="ignore"):
            c = factor(k)
        pivots = np.einsum("iin->in", c)
        if not (pivots > 0).all():
            return None
        found = solved(c, np.concatenate([la, product(roots, group, b)], axis=1))
        g, h = found[:, :-1], found[:, -1:]
        return cls(
            a - dots(g, g),
            (b - dots(g, h))[:, 0],
            below.yy - dots(h, h)[0, 0],
            below.ld + 2 * np.log(pivots).sum(0),
        )

    def summed(self, parent: Ints, above: int) -> Sums:
        """Sums of what they say."""
        parts = self.p, self.q, self.yy, self.ld
        return Sums(*(in_groups(part, parent, above) for part in parts))

    def slope(self, parent: Ints, mean: Floats, covariance: Floats) -> tuple[Floats, Floats]:
        """Q and s."""
        across = product(covariance, parent, self.p)
        return (
            self.p - dots(across, self.p),
            self.q - product(mean[..., None], parent, self.p)[0],
        )


@dataclass(frozen=True)
class OneByOne:
    """Units one after the other: P, q, yy and ld for their centres, as `Sums` of these."""

    said: Sums

    @classmethod
    def of(cls, below: Sums, roots: Floats, group: Ints) -> OneByOne:
        """Units with the roots (g, d, r) of their groups."""
        turned = Turned.of(roots, group)
        al, bl = turned.times(below.a), turned.times(below.b[:, None])
        g, h, ld = whitened(turned.times(al.mT), al, bl)
        q, yy = below.b - (g @ h[..., None])[..., 0], below.yy - np.square(h).sum(1)
        return cls(Sums(below.a - g @ g.mT, q, yy, below.ld + ld))

    def summed(self, parent: Ints, above: int) -> Sums:
        """Sums of what they say."""
        return Sums(*(by_cluster(part, parent, above) for part in self.said))

    def slope(self, parent: Ints, mean: Floats, covariance: Floats) -> tuple[Floats, Floats]:
        """Q and s."""
        p = self.said.a
        q = p - p @ covariance[parent] @ p
        s = self.said.b - (p @ mean[parent, :, None])[..., 0]
        return np.moveaxis(q, 0, -1), s.T


@dataclass(frozen=True)
class Thin:
    """F (n, d, m) and t (n, m) of all units; columns that a unit has not are 0."""

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
        if m > THIN_SHARE * d:
            return None
        roots = np.sqrt(np.maximum(spectra.values[:, d - m :], 0.0))
        f = np.ascontiguousarray(spectra.vectors[..., d - m :] * roots[:, None])
        t = np.where(roots > 0, spectra.slopes[:, d - m :] / np.where(roots > 0, roots, 1.0), 0.0)
        away = np.linalg.norm((f @ t[..., None])[..., 0] - users.b, axis=1)
        sound = away <= OUTSIDE * np.linalg.norm(users.b, axis=1)
        return cls(f, t) if sound.all() else None

    def at(self, rows: Ints) -> Thin:
        """Some units."""
        return Thin(self.f[rows], self.t[rows])


@dataclass(frozen=True)
class ThinBlock:
    """G (n, d, m), h (n, m), yy and ld of thin units."""

    g: Floats
    h: Floats
    yy: Floats
    ld: Floats

    @classmethod
    def of(cls, thin: Thin, below: Sums, roots: Floats, group: Ints) -> ThinBlock:
        """Units with the roots (g, d, r) of their groups."""
        across = Turned.of(roots, group).times(thin.f.mT)  # F'L
        g, h, ld = whitened(across @ across.mT, thin.f, thin.t[:, None])
        yy = below.yy - np.square(thin.t).sum(1) + np.square(h).sum(1)
        return cls(g, h, yy, below.ld + ld)

    def summed(self, parent: Ints, above: int) -> Sums:
        """Sums of what they say."""
        d = self.g.shape[1]
        p, q = np.zeros((above, d, d)), np.zeros((above, d))
        for unit in np.unique(parent):
            columns = self.g[parent == unit].mT.reshape(-1, d)
            p[unit] = columns.T @ columns
            q[unit] = self.h[parent == unit].reshape(-1) @ columns
        return Sums(p, q, *(by_cluster(part, parent, above) for part in (self.yy, self.ld)))

    def slope(self, parent: Ints, mean: Floats, covariance: Floats) -> tuple[Floats, Floats]:
        """Q = G(I - G'CG)G' and s = G(h - G'm)."""
        inner = np.eye(self.h.shape[1]) - self.g.mT @ (covariance[parent] @ self.g)
        left = self.h - (mean[parent, None] @ self.g)[:, 0]
        s = (self.g @ left[..., None])[..., 0]
        return np.moveaxis((self.g @ inner) @ self.g.mT, 0, -1), s.T


@dataclass(frozen=True)
class Turned:
    """Roots L, by which rows are multiplied; columns with one entry each are no product.

    Parameters
    ----------
    root : L (n, d, r), or (1, d, r) for all units.
    place : of each column the row of its entry; None: there are columns with more.
    """

    root: Floats
    place: Ints | None

    @classmethod
    def of(cls, roots: Floats, group: Ints) -> Turned:
        """Of the roots (g, d, r) of units' groups."""
        own = roots[group] if len(roots) > 1 else roots
        entries = (roots != 0).any(0)
        single = bool((entries.sum(0) <= 1).all())
        return cls(own, entries.argmax(0) if single else None)

    def times(self, rows: Floats) -> Floats:
        """Rows (n, m, d) times L (n, m, r)."""
        if self.place is None:
            return np.asarray(rows @ self.root)
        entries = self.root[:, self.place, np.arange(len(self.place))]
        return np.asarray(rows[..., self.place] * entries[:, None])


def whitened(k: Floats, across: Floats, along: Floats) -> tuple[Floats, Floats, Floats]:
    """across C'^-1 (n, d, r), along C'^-1 (n, r) and log|I + K|, of I + K = CC' (n, r, r).

    No eigenvalue of K is below 0, but for what rounding leaves of large roots.
    """
    import torch  # who names the mixed model need not wait for it

    whole = k + np.eye(k.shape[-1])
    c, wrong = torch.linalg.cholesky_ex(torch.from_numpy(whole))
    if wrong.any():
        values, vectors = np.linalg.eigh(whole)
        values = np.maximum(values, 1.0)
        half = vectors / np.sqrt(values)[..., None, :]
        return across @ half, (along @ half)[:, 0], np.log(values).sum(-1)
    rows = torch.from_numpy(np.concatenate([across, along], axis=1))
    found = torch.linalg.solve_triangular(c.mT, rows, upper=True, left=False).numpy()
    sizes = np.diagonal(c.numpy(), 0, -2, -1)
    return found[:, :-1], found[:, -1], 2 * np.log(sizes).sum(-1)
