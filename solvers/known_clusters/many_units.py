"""A level of very many units, worked through in blocks: only sums over them are kept.

K, P and q are those of tree.py. A million users' matrices are looked at twice in each step of a
search, once for the deviance and once for its slope, and never lie in memory all at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.solvers.known_clusters.absorbed import Absorbed, Derivative, Known, Level, Sums
from corsage.solvers.known_clusters.lanes import (
    AT_ONCE,
    WIDEST,
    back,
    dots,
    factor,
    lanes,
    plus_one,
    solved,
)
from corsage.solvers.known_clusters.mixed_model import by_cluster

@dataclass(frozen=True)
class ManyAbsorbed:
    """What `Absorbed` is, for units below with the roots L (g, d, r) of their groups."""

    below: Sums
    level: Level
    root: Floats

    def blocks(self) -> Iterator[tuple[slice, Absorbed]]:
        """Some units after the others, integrated out."""
        of = Absorbed.of if self.root.shape[1] > WIDEST else in_lanes
        for first in range(0, len(self.below.b), AT_ONCE):
            some = slice(first, first + AT_ONCE)
            below = Sums(*(part[some] for part in self.below))
            yield some, of(below, self.root[self.level.group[some]])

    def summed(self, level: Level) -> Sums:
        """What the units above say."""
        parts = [own.summed(part_of(level, some)) for some, own in self.blocks()]
        return Sums(*(np.sum(part, axis=0) for part in zip(*parts, strict=True)))

    def own(self, centre: Known) -> Known:
        """What is known of each unit's x, from what is known of its centre."""
        found = [
            own.own(Known(centre.mean[some], centre.covariance[some]))
            for some, own in self.blocks()
        ]
        return Known(*(np.concatenate(part) for part in zip(*found, strict=True)))

    def derivative(self, level: Level, above: Known, sigma2: float) -> ManyDerivative:
        """How the deviance changes with the level's covariances, given what is known above."""
        return ManyDerivative(self, level, above, sigma2)


class Totals(NamedTuple):
    """Sums over the units of each group (g, d, d): of Q, of s s', and of Q_ab^2."""

    q: Floats
    squares_of_s: Floats
    squares_of_q: Floats


@dataclass(frozen=True)
class ManyDerivative:
    """What `Derivative` is, of units in blocks."""

    units: ManyAbsorbed
    level: Level
    above: Known
    sigma2: float

    def blocks(self) -> Iterator[Derivative]:
        """Some units after the others."""
        for some, own in self.units.blocks():
            yield own.derivative(part_of(self.level, some), self.above, self.sigma2)

    @cached_property
    def totals(self) -> Totals:
        """All sums but those of pairs, in one pass."""
        groups, found = len(self.units.root), []
        for own in self.blocks():
            parts = own.q, own.s[:, :, None] * own.s[:, None], np.square(own.q)
            found.append([by_cluster(part, own.group, groups) for part in parts])
        return Totals(*(np.sum(part, axis=0) for part in zip(*found, strict=True)))

    def weights(self, groups: int) -> Floats:
        """Sums of Q (g, d, d)."""
        return self.totals.q

    def slopes(self, groups: int) -> Floats:
        """G (g, d, d)."""
        return self.totals.q - self.totals.squares_of_s / self.sigma2

    def pairs(self, groups: int, varies: Ints) -> Floats:
        """Sums of Q_ab Q_cd (g, r, r, r, r)."""
        return np.asarray(sum(own.pairs(groups, varies) for own in self.blocks()))

    def squares(self, groups: int, varies: Ints) -> Floats:
        """Sums of Q_ab^2 (g, r, r)."""
        return self.totals.squares_of_q[:, varies[:, None], varies]


def part_of(level: Level, some: slice) -> Level:
    """Some units of a level; those above it stay."""
    return Level(level.parent[some], level.above, level.group[some])


def in_lanes(below: Sums, root: Floats) -> Absorbed:
    """`Absorbed.of` with K = CC': P = A - G'G with G = C^-1 L'A, and so on, units last."""
    a, b, up = lanes(below.a), lanes(below.b)[:, None], lanes(root)
    la, lb = dots(up, a), dots(up, b)
    c = factor(plus_one(dots(np.swapaxes(la, 0, 1), up)))
    g, h, spread = solved(c, la), solved(c, lb), solved(c, np.swapaxes(up, 0, 1))
    said = Sums(
        back(a - dots(g, g)),
        back((b - dots(g, h))[:, 0]),
        below.yy - dots(h, h)[0, 0],
        below.ld + 2 * np.sum([np.log(c[i, i]) for i in range(len(c))], axis=0),
    )
    return Absorbed(below, said, back(dots(spread, spread)))
