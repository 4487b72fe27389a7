"""Units of one level, their own deviations integrated out: what they say of their centres.

K, P and q are those of tree.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.solvers.known_clusters.lanes import WIDEST
from corsage.solvers.known_clusters.mixed_model import by_cluster


class Sums(NamedTuple):
    """What units say of their coefficients: A (n, d, d), b (n, d), yy (n,) and ld (n,)."""

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


@dataclass(frozen=True)
class Level:
    """One level of units: the unit above each (n,), and how many of these there are.

    `group` (n,) says which of the level's covariances a unit has.
    """

    parent: Ints
    above: int
    group: Ints

    @classmethod
    def plain(cls, parent: Ints, above: int) -> Level:
        """One covariance for all."""
        return cls(parent, above, np.zeros(len(parent), np.int64))

    def at(self, rows: Ints) -> Level:
        """Some units."""
        return Level(self.parent[rows], self.above, self.group[rows])


@dataclass(frozen=True)
class Absorbed:
    """A level whose units' own deviations are integrated out, given their roots L (n, d, r).

    Parameters
    ----------
    below : what its units say of themselves.
    said : what they say of their centres: P, q, yy, ld.
    root : L of each.
    """

    below: Sums
    said: Sums
    root: Floats

    @classmethod
    def of(cls, below: Sums, root: Floats) -> Absorbed:
        """K = I + L'AL, as above."""
        if root.shape[-2] > WIDEST:
            try:
                return cls(below, by_factors(below, root), root)
            except np.linalg.LinAlgError:
                pass  # what rounding leaves of large roots is not definite
        return cls(below, by_inverses(below, root), root)

    @cached_property
    def spread(self) -> Floats:
        """L K^-1 L': the covariance of a unit around its centre, given what is below it."""
        inverse = np.linalg.inv(plus_one(turned(self.below.a, self.root), self.root))
        return np.asarray(self.root @ inverse @ self.root.mT)

    def summed(self, level: Level) -> Sums:
        """What the units above say."""
        return Sums(*(by_cluster(part, level.parent, level.above) for part in self.said))

    def own(self, centre: Known) -> Known:
        """What is known of each unit's x, from what is known of its centre."""
        a, b = self.below.a, self.below.b
        mean = centre.mean + (self.spread @ (b - _times(a, centre.mean))[..., None])[..., 0]
        rest = np.eye(a.shape[-1]) - self.spread @ a
        return Known(mean, self.spread + rest @ centre.covariance @ rest.mT)

    def derivative(self, level: Level, above: Known, sigma2: float) -> Derivative:
        """How the deviance changes with the level's covariances, given what is known above."""
        return Derivative.of(level, self.said, above.of(level), sigma2)


def by_inverses(below: Sums, root: Floats) -> Sums:
    """What units with few coefficients say of their centres."""
    la = turned(below.a, root)
    lb = root.mT @ below.b[..., None]
    k = plus_one(la, root)
    solved = np.linalg.inv(k) @ np.concatenate([la, lb], axis=-1)
    p = below.a - la.mT @ solved[..., :-1]
    told = solved[..., -1:]
    return Sums(
        (p + p.mT) / 2,
        below.b - (la.mT @ told)[..., 0],
        below.yy - (lb.mT @ told)[..., 0, 0],
        below.ld + np.linalg.slogdet(k)[1],
    )


def by_factors(below: Sums, root: Floats) -> Sums:
    """The same with K = CC' and G = C^-1 L'A: P = A - G'G.

    Of many coefficients a factor, of each unit after the other, takes a sixth of the products.
    """
    la = turned(below.a, root)
    c: Floats = np.linalg.cholesky(plus_one(la, root)).astype(np.float64, copy=False)
    g, h = forward(c, la, (root.mT @ below.b[..., None])[..., 0])
    return Sums(
        below.a - g.mT @ g,
        below.b - (g.mT @ h[..., None])[..., 0],
        below.yy - np.square(h).sum(-1),
        below.ld + 2 * np.log(np.diagonal(c, 0, -2, -1)).sum(-1),
    )


def forward(c: Floats, rows: Floats, slopes: Floats) -> tuple[Floats, Floats]:
    """C^-1 rows (n, m, d) and C^-1 slopes (n, m), of lower triangles C, one after the other."""
    from scipy.linalg.blas import dtrsm, dtrsv

    across, along = np.empty(rows.shape), np.empty(slopes.shape)
    for i, own in enumerate(c):
        across[i] = dtrsm(1.0, own.T, rows[i].T, side=1).T
        along[i] = dtrsv(own.T, slopes[i], trans=1)
    return across, along


def turned(a: Floats, root: Floats) -> Floats:
    """L'A (n, r, d); where a column of L has one entry it is a row of A, times that."""
    entries = (root != 0).any(0)
    if (entries.sum(0) > 1).any():
        return np.asarray(root.mT @ a)
    place = entries.argmax(0)
    return np.asarray(root[:, place, np.arange(len(place)), None] * a[:, place])


def plus_one(la: Floats, root: Floats) -> Floats:
    """K = I + L'AL (n, r, r)."""
    return np.eye(root.shape[-1]) + turned(la.mT, root).mT


class Known(NamedTuple):
    """What is known of units given all data: means (n, d), covariances (n, d, d) over sigma^2."""

    mean: Floats
    covariance: Floats

    def of(self, level: Level) -> Known:
        """Of the units above, for each unit of a level."""
        return Known(self.mean[level.parent], self.covariance[level.parent])


@dataclass(frozen=True)
class Derivative:
    """How the deviance changes with a level's covariances: with dD of a group by tr(G dD).

    G is the sum over its units of Q - s s'/sigma^2, with Q = P - P C P and s = q - P m: C and m are
    the covariance and mean of the unit's centre.

    Parameters
    ----------
    q, s : of each unit (n, d, d), (n, d).
    group : of each (n,).
    sigma2 : of the noise.
    """

    q: Floats
    s: Floats
    group: Ints
    sigma2: float

    @classmethod
    def of(cls, level: Level, said: Sums, centre: Known, sigma2: float) -> Derivative:
        """From what units say of their centres, and what is known of these."""
        q = said.a - said.a @ centre.covariance @ said.a
        return cls(q, said.b - _times(said.a, centre.mean), level.group, sigma2)

    def weights(self, groups: int) -> Floats:
        """Sums of Q (g, d, d)."""
        return by_cluster(self.q, self.group, groups)

    def slopes(self, groups: int) -> Floats:
        """G (g, d, d)."""
        rows = [self.s[self.group == g] for g in range(groups)]
        return self.weights(groups) - np.stack([s.T @ s for s in rows]) / self.sigma2

    def pairs(self, groups: int, varies: Ints) -> Floats:
        """Sums of Q_ab Q_cd (g, r, r, r, r): the curvature on average is tr(Q dD Q dD)."""
        inner = self.q[:, varies[:, None], varies]
        rows = [inner[self.group == g].reshape(-1, len(varies) ** 2) for g in range(groups)]
        return np.stack([q.T @ q for q in rows]).reshape(groups, *4 * (len(varies),))

    def squares(self, groups: int, varies: Ints) -> Floats:
        """Sums of Q_ab^2 (g, r, r): the same for dD that are diagonal."""
        whole = len(varies) == self.q.shape[-1]
        inner = self.q if whole else self.q[:, varies[:, None], varies]
        if groups == 1:
            return np.asarray(np.einsum("nab,nab->ab", inner, inner))[None]
        return by_cluster(np.square(inner), self.group, groups)


def _times(matrices: Floats, vectors: Floats) -> Floats:
    return np.asarray((matrices @ vectors[..., None])[..., 0])
