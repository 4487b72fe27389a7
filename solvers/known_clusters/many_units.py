"""A level of very many units, worked through in blocks: only sums over them are kept.

K, P and q are those of tree.py. A million users' matrices are looked at twice in each step of a
search, once for the deviance and once for its slope, and never lie in memory all at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.solvers.known_clusters.absorbed import Absorbed, Derivative, Known, Level, Sums
from corsage.solvers.known_clusters.lane_units import LaneDerivative, Said
from corsage.solvers.known_clusters.lanes import AT_ONCE, WIDEST
from corsage.solvers.known_clusters.mixed_model import by_cluster, unpack


@dataclass(frozen=True)
class ManyAbsorbed:
    """What `Absorbed` is, for units below with the roots L (g, d, r) of their groups."""

    below: Sums
    level: Level
    root: Floats

    @property
    def narrow(self) -> bool:
        """Whether lanes are faster than a library's call a matrix."""
        return bool(self.root.shape[1] <= WIDEST)

    def parts(self) -> Iterator[tuple[slice, Sums]]:
        """What is below some units after the others."""
        for first in range(0, len(self.below.b), AT_ONCE):
            some = slice(first, first + AT_ONCE)
            yield some, Sums(*(part[some] for part in self.below))

    def blocks(self) -> Iterator[tuple[slice, Absorbed]]:
        """Some units after the others, integrated out."""
        for some, below in self.parts():
            yield some, Absorbed.of(below, self.root[self.level.group[some]])

    def said(self) -> Iterator[tuple[slice, Said]]:
        """The same in lanes: what they say of their centres, and no more."""
        for some, below in self.parts():
            yield some, Said.of(below, self.root, self.level.group[some])

    def summed(self, level: Level) -> Sums:
        """What the units above say."""
        if self.narrow:
            own = (said.summed(level.parent[some], level.above) for some, said in self.said())
            upper, *rest = added(own)
            return Sums(unpack(upper, self.root.shape[1]), *rest)
        return Sums(*added(own.summed(part_of(level, some)) for some, own in self.blocks()))

    def own(self, centre: Known) -> Known:
        """What is known of each unit's x, from what is known of its centre."""
        found = [
            own.own(Known(centre.mean[some], centre.covariance[some]))
            for some, own in self.blocks()
        ]
        return Known(*(np.concatenate(part) for part in zip(*found, strict=True)))

    def derivative(
        self, level: Level, above: Known, sigma2: float
    ) -> ManyDerivative | LaneDerivative:
        """How the deviance changes with the level's covariances, given what is known above."""
        if self.narrow:
            return LaneDerivative(level, above, sigma2, len(self.root), self.said)
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
        groups = len(self.units.root)
        parts = ((own.q, own.s[:, :, None] * own.s[:, None], np.square(own.q), own.group)
                 for own in self.blocks())  # fmt: skip
        return Totals(*added([by_cluster(part, group, groups) for part in own]
                             for *own, group in parts))  # fmt: skip

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


def added(parts: Iterable[Sequence[Floats]]) -> list[Floats]:
    """The sums of blocks, part by part."""
    found: list[Floats] = []
    for own in parts:
        found = [one + more for one, more in zip(found, own, strict=True)] if found else [*own]
    return found
