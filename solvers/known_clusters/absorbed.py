"""Units of one level, their own deviations integrated out: what they say of their centres.

K, P and q are those of tree.py. Units are worked through in blocks (blocks.py), of which only sums
are kept: a million users' matrices are looked at twice in each step of a search, once for the
deviance and once for its slope, and never lie in memory all at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from corsage.core.arrays import Bools, Floats, Ints
from corsage.solvers.known_clusters.blocks import Block, InLanes, OneByOne, Sums, Thin, ThinBlock
from corsage.solvers.known_clusters.lanes import (
    AT_ONCE,
    WIDEST,
    back,
    dots,
    factor,
    lanes,
    narrow,
    plus_one,
    solved,
    solved_back,
)
from corsage.solvers.known_clusters.mixed_model import unpack


@dataclass(frozen=True)
class Level:
    """One level of units: the unit above each (n,), and how many of these there are.

    `group` (n,) says which of the level's covariances a unit has; `told` (d,) of which coefficients
    the data tell a variance (None: of all).
    """

    parent: Ints
    above: int
    group: Ints
    told: Bools | None = None

    @classmethod
    def plain(cls, parent: Ints, above: int) -> Level:
        """One covariance for all."""
        return cls(parent, above, np.zeros(len(parent), np.int64))

    def at(self, rows: Ints | slice) -> Level:
        """Some units; those above them stay."""
        return replace(self, parent=self.parent[rows], group=self.group[rows])


class Known(NamedTuple):
    """Units given all data: means (n, d), covariances (n, d, d) over sigma^2."""

    mean: Floats
    covariance: Floats

    def of(self, level: Level) -> Known:
        """Of the units above, for each unit of a level."""
        return Known(self.mean[level.parent], self.covariance[level.parent])


@dataclass(frozen=True)
class Absorbed:
    """A level whose units' own deviations are integrated out, given their groups' roots L.

    Parameters
    ----------
    below : what the units say of themselves.
    level : the units above them, and their groups.
    root : L of each group (g, d, r).
    thin : the same in few rows, if each unit has few records for its coefficients.
    """

    below: Sums
    level: Level
    root: Floats
    thin: Thin | None = None

    @property
    def many(self) -> bool:
        """True if units are too many to be held as matrices at once."""
        return len(self.below.b) > AT_ONCE

    def blocks(self) -> Iterator[tuple[Level, Block]]:
        """Some units after the others, integrated out."""
        if not self.many:
            yield self.level, self._whole
            return
        for first in range(0, len(self.below.b), AT_ONCE):
            some = slice(first, first + AT_ONCE)
            level, below = self.level.at(some), Sums(*(part[some] for part in self.below))
            yield level, integrated(below, self.root, level.group)

    @cached_property
    def _whole(self) -> Block:
        """All units as one block."""
        if self.thin is not None:
            return ThinBlock.of(self.thin, self.below, self.root, self.level.group)
        return integrated(self.below, self.root, self.level.group)

    def summed(self) -> Sums:
        """Sums for the units above."""
        parts = (block.summed(level.parent, level.above) for level, block in self.blocks())
        total = next(parts)
        for part in parts:
            total = Sums(*map(np.add, total, part))
        return total

    def own(self, centre: Known) -> Known:
        """Each unit's x, given what is known of its centre."""
        return known(self.below.a, self.below.b, self.root[self.level.group], centre)

    def derivative(self, above: Known, sigma2: float) -> Derivative:
        """The change of the deviance with the level's covariances, given what is known above."""
        return Derivative(self, above, sigma2)


def integrated(below: Sums, root: Floats, group: Ints) -> Block:
    """A block of units, by what is fastest for so many with so many coefficients."""
    kind = InLanes if narrow(*below.b.shape) else OneByOne
    return kind.of(below, root, group) or OneByOne.of(below, root, group)


def spread(a: Floats, root: Floats) -> Floats:
    """L K^-1 L' (n, d, d): the covariance of a unit around its centre, given what is below it."""
    k = np.eye(root.shape[-1]) + root.mT @ a @ root
    return np.asarray(root @ np.linalg.inv(k) @ root.mT)


def known(a: Floats, b: Floats, root: Floats, centre: Known) -> Known:
    """Each unit's x, given what is known of its centre; with a root (n, d, r)."""
    around = spread(a, root)
    slope = b - (a @ centre.mean[..., None])[..., 0]
    rest = np.eye(a.shape[-1]) - around @ a
    mean = centre.mean + (around @ slope[..., None])[..., 0]
    return Known(mean, around + rest @ centre.covariance @ rest.mT)


class SlopeSums(NamedTuple):
    """Sums over the units of each group: Q and G (g, d, d), and products of numbers of Q."""

    weights: Floats
    slopes: Floats
    products: Floats


@cache
def halves(r: int) -> tuple[tuple[Ints, Ints], Ints]:
    """The places of a symmetric matrix's upper half, and of each of its numbers (r, r) in that."""
    upper = np.triu_indices(r)
    place = unpack(np.arange(len(upper[0]), dtype=np.float64), r)
    return upper, place.astype(np.int64)


@dataclass(frozen=True)
class Derivative:
    """The change of the deviance with a level's covariances: with dD of a group by tr(G dD).

    G is the sum over its units of Q - s s'/sigma^2, with Q = P - P C P and s = q - P m: C and m are
    the covariance and mean of the unit's centre.

    Parameters
    ----------
    units : of the level.
    above : what is known of their centres.
    sigma2 : of the noise.
    """

    units: Absorbed
    above: Known
    sigma2: float

    def sums(self, varies: Ints, *, pairs: bool) -> SlopeSums:
        """All of them, in one pass over the units.

        The curvature on average is tr(Q dD Q dD), for which `pairs` are the sums of Q_ab Q_cd
        (g, r, r, r, r) over what varies; of dD that are diagonal those of Q_ab^2 (g, r, r) do.
        """
        groups, d, _ = self.units.root.shape
        r, (upper, place) = len(varies), halves(len(varies))
        q, outer = np.zeros((2, groups, d, d))
        products = np.zeros((groups, *2 * (len(upper[0]),)) if pairs else (groups, r, r))
        for level, block in self.units.blocks():
            own, s = block.slope(level.parent, self.above.mean, self.above.covariance)
            inner = own if r == d else own[varies[:, None], varies]
            v = inner[upper] if pairs else inner
            for g in range(groups):
                some = level.group == g if groups > 1 else slice(None)
                q[g] += own[..., some].sum(-1)
                outer[g] += s[:, some] @ s[:, some].T
                part = v[..., some]
                products[g] += part @ part.T if pairs else np.einsum("abn,abn->ab", part, part)
        if pairs:
            products = products[:, place[:, :, None, None], place]
        return SlopeSums(q, q - outer / self.sigma2, products)


# Users' models where what ties them to their centre is a covariance D = L L', given by its root:
# theta = w + L u with |u|^2/2 for its cost. What does not vary is the centre's.


def rooted_models(a: Floats, b: Floats, root: Floats, w: Floats) -> Floats:
    """theta_i = w + V (b - A w) (n, d), with V = L (I + L'AL)^-1 L'."""
    if len(b) > AT_ONCE and root.shape[0] <= WIDEST:
        parts = (slice(first, first + AT_ONCE) for first in range(0, len(b), AT_ONCE))
        return np.concatenate([models_in_lanes(a[p], b[p], root, w[p]) for p in parts])
    slope = (b - (a @ w[..., None])[..., 0]) @ root
    k = np.eye(root.shape[1]) + root.T @ (a @ root)
    return np.asarray(w + np.linalg.solve(k, slope[..., None])[..., 0] @ root.T)


def models_in_lanes(a: Floats, b: Floats, root: Floats, w: Floats) -> Floats:
    """The same of very many users: u = K^-1 L'(b - A w) with K = CC', users last."""
    up, across, centre = root[..., None], lanes(a), lanes(w)[:, None]
    rest = lanes(b)[:, None] - dots(across, centre)
    c = factor(plus_one(dots(up, np.swapaxes(dots(up, across), 0, 1))))
    u = solved_back(c, solved(c, dots(up, rest)))
    return back((centre + dots(np.swapaxes(up, 0, 1), u))[:, 0])


def rooted_prediction(a: Floats, b: Floats, root: Floats, centre: Floats) -> tuple[Floats, Floats]:
    """Of theta_i - what it estimates (n, d, d), and the weight V A of a user's own data.

    `centre` (d, d) is the covariance of the users' centre.
    """
    around = Known(np.zeros_like(b), np.broadcast_to(centre, a.shape))
    return known(a, b, root, around).covariance, spread(a, root) @ a
