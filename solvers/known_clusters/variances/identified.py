"""Variances that the data can tell, before any is fitted; the others are held at 0, with a reason.

The covariance of all records, V, is linear in sigma^2 and in the variances v of all levels. So data
tell them apart if and only if these parts of V are linearly independent once everything that the
coefficients of all explain is taken out, with P = I - X (X'X)^-1 X':

    G_vu = tr(P V_v P V_u)   is regular,   V_v = sum over the units I of z_I z_I',

with z_I the column of v in the rows of unit I, and V = I of sigma^2. G is Fisher's information
where there are no variances yet, and has the same rank everywhere. Users' sums A give it:

    z_Ic'P z_Jd = [I below J] (A_I)_cd - (A_I (X'X)^-1 A_J)_cd.

What is 0 in G is told by nobody: there is one unit, or rows of one unit alone have the column. What
depends on those before it (sigma^2, then intercepts, then slopes, from the users up) is told only
as a sum with them. And a column that is constant within all units has no slope in any of them: what
they would have is a difference between their intercepts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from corsage.core.arrays import Bools, Floats, Ints
from corsage.solvers.known_clusters.lanes import AT_ONCE
from corsage.solvers.known_clusters.mixed_model import by_cluster
from corsage.solvers.known_clusters.tree import Tree
from corsage.solvers.known_clusters.variances.covariance import FLAT_CURVATURE

NOTHING_LEFT = 1e-9
"""A share of what is there before the coefficients of all are taken out: less is rounding."""
DEPENDENT = 1e-8
"""The same of what is left when the variances before are taken out."""
NOISE_WORDS = "the variance between records"
CONSTANT_WITHIN = "its column is constant within each {}"
NOWHERE = "its column is constant"
ALONE = "it shows in rows of one {} alone, or there are no more rows than coefficients"
ONE_UNIT = "there is one {}"
A_SUM = "these data tell only the sum of it and {}"

ONE_ROW = "each user has one row, and a class has no scatter of its own"

Reasons = dict[int, str]
"""Why the variances of some coefficients are held at 0, by the numbers of these."""


@dataclass(frozen=True)
class Units:
    """X'X of the units of a level (n, d, d), and of each the unit above it on every level."""

    a: Floats
    above: list[Ints]

    def chunks(self) -> Iterator[slice]:
        """Some units after the others."""
        return (slice(i, i + AT_ONCE) for i in range(0, len(self.a), AT_ONCE))


def units_of(tree: Tree) -> list[Units]:
    """Those of each level, from the users up."""
    found, a = list[Units](), tree.users.a
    for number, level in enumerate(tree.levels):
        above = [np.arange(len(a))]
        for own in tree.levels[number:-1]:
            above.append(own.parent[above[-1]])
        found.append(Units(a, above))
        a = by_cluster(a, level.parent, level.above)
    return found


@dataclass(frozen=True)
class Information:
    """G, of sigma^2 and of the variances of some coefficients (r,) on each of some levels."""

    levels: list[Units]
    which: Ints
    records: float

    @cached_property
    def total(self) -> Floats:
        """X'X."""
        return np.asarray(self.levels[0].a.sum(0))

    @cached_property
    def told(self) -> Floats:
        """Directions (d, rank) that the data tell, in which X'X is the identity.

        Of columns that are nearly sums of others the rest is rounding, and would drown all else.
        """
        length = np.sqrt(np.maximum(np.diagonal(self.total), 0.0))
        unit = 1 / np.where(length > 0, length, 1.0)
        values, vectors = np.linalg.eigh(unit[:, None] * self.total * unit)
        known = values > FLAT_CURVATURE
        return np.asarray(unit[:, None] * vectors[:, known] / np.sqrt(values[known]))

    @cached_property
    def inverse(self) -> Floats:
        """(X'X)^-1, of what is regular in it."""
        return self.told @ self.told.T

    @cached_property
    def outer(self) -> list[Floats]:
        """Of each level the sums over its units of a_Ic a_Ic', times (X'X)^-1 (r, d, d)."""
        rows = (level.a[:, self.which].transpose(1, 0, 2) for level in self.levels)
        return [np.asarray(own.mT @ own @ self.inverse) for own in rows]

    def pair(self, low: int, high: int) -> tuple[Floats, Floats]:
        """G between two levels (r, r), and what it is with nothing taken out."""
        below, above, which = self.levels[low], self.levels[high], self.which
        shared, taken = np.zeros((2, len(which), len(which)))
        for some in below.chunks():
            own, other = below.a[some][:, which], above.a[below.above[high - low][some]][:, which]
            shared += np.square(own[..., which]).sum(0)
            taken += (own[..., which] * (own @ self.inverse @ other.mT)).sum(0)
        across = np.tensordot(self.outer[low], self.outer[high], ((1, 2), (2, 1)))
        return shared - 2 * taken + across, shared

    def noise(self, number: int) -> Floats:
        """G between sigma^2 and a level (r,)."""
        level, found = self.levels[number], np.zeros(len(self.which))
        for some in level.chunks():
            own = level.a[some][:, self.which]
            found += np.einsum("ncc->c", own[..., self.which])
            found -= ((own @ self.inverse) * own).sum((0, 2))
        return found

    def whole(self) -> tuple[Floats, Floats]:
        """G, and its diagonal with nothing taken out."""
        r, count = len(self.which), len(self.levels)
        g, before = np.zeros((1 + r * count, 1 + r * count)), np.zeros(1 + r * count)
        g[0, 0] = self.records - self.told.shape[1]
        places = [slice(1 + r * number, 1 + r * (number + 1)) for number in range(count)]
        for low, own in enumerate(places):
            g[0, own] = g[own, 0] = self.noise(low)
            for high, other in enumerate(places[low:], low):
                g[own, other], shared = self.pair(low, high)
                g[other, own] = g[own, other].T
                before[own] = np.diag(shared) if high == low else before[own]
        return g, before


def within(units: Units) -> Units:
    """The same of columns around their means in each unit; the last column is of ones."""
    a = units.a
    ones = np.maximum(a[:, -1, -1], 1e-300)[:, None, None]
    return Units(a - a[:, :, -1:] * a[:, -1:] / ones, [np.arange(len(a))])


def flat(units: Units, which: Ints, unit: str) -> Reasons:
    """The coefficients of which no two units' slopes can be told apart, for any intercepts."""
    inner = within(units)
    around, before = (np.einsum("ncc->c", own.a)[which] for own in (inner, units))
    shown, shared = (np.diag(part) for part in Information([inner], which, 0.0).pair(0, 0))
    found = Reasons()
    for c, constant, alone in zip(
        which.tolist(), around <= NOTHING_LEFT * before, shown <= NOTHING_LEFT * shared, strict=True
    ):
        if constant or alone:
            found[c] = (
                CONSTANT_WITHIN if constant else ONE_UNIT if len(inner.a) == 1 else ALONE
            ).format(unit)
    return found


@dataclass
class Basis:
    """Rows of G that do not depend on each other, with the factor of their part of G."""

    g: Floats
    kept: list[int] = field(default_factory=list)
    factor: Floats = field(default_factory=lambda: np.zeros((0, 0)))

    def add(self, row: int) -> int | None:
        """Keep a row; if it depends on those that are kept, the one that it is most like."""
        from scipy.linalg import solve_triangular

        own = solve_triangular(self.factor, self.g[self.kept, row], lower=True)
        rest = self.g[row, row] - own @ own
        if rest <= DEPENDENT * self.g[row, row]:
            shares = solve_triangular(self.factor.T, own) * np.sqrt(np.diag(self.g)[self.kept])
            return self.kept[int(np.abs(shares).argmax())]
        end = np.append(own, np.sqrt(rest))
        wider = np.pad(self.factor, ((0, 0), (0, 1)))
        self.kept, self.factor = [*self.kept, row], np.concatenate([wider, end[None]])
        return None


@dataclass(frozen=True)
class Shown:
    """What the units of a level show of slopes: all that their sums together tell.

    Parameters
    ----------
    within : the sum over units of the squares of columns around their means there (d,).
    twice : the sum over units of the squares of these (d,).
    units : their number.
    """

    within: Floats
    twice: Floats
    units: int

    @classmethod
    def of(cls, a: Floats) -> Shown:
        """From X'X of the units (n, d, d), where the last column is of ones."""
        inner = np.diagonal(within(Units(a, [])).a, 0, 1, 2)
        return cls(inner.sum(0), np.square(inner).sum(0), len(a))


def untold_by_sums(
    levels: Sequence[Shown],
    squares: Floats,
    varies: Ints,
    names: Sequence[str],
    intercept: bool,
    scatter: bool,
) -> list[Reasons]:
    """The same as `untold`, as far as sums over units tell it: of families other than Gauss's.

    `squares` is X'X of all. Without `scatter` rows have none of their own: there is one a user.
    """
    found, last = list[Reasons](), len(names) - 1 if intercept else -1
    units = ["super" * (at - 1) + "cluster" if at else "user" for at in range(len(levels))]
    for at, (shown, unit) in enumerate(zip(levels, units, strict=True)):
        below, own = levels[at - 1].units if at else 0, Reasons()
        few = shown.within <= NOTHING_LEFT * np.diag(squares)
        alone = shown.twice >= (1 - DEPENDENT) * np.square(shown.within)
        for c in varies.tolist():
            slope = intercept and c != last
            if shown.units == 1:
                own[c] = ONE_UNIT.format(unit)
            elif shown.units == below:
                own[c] = A_SUM.format(f"that of {names[c]} between {units[at - 1]}s")
            elif c == last and not at and not scatter:
                own[c] = ONE_ROW
            elif slope and (few[c] or alone[c]):
                own[c] = (CONSTANT_WITHIN if few[c] else ALONE).format(unit)
        found.append(own)
    return found


def untold(tree: Tree, varies: Ints, names: Sequence[str], intercept: bool) -> list[Reasons]:
    """Of each level the coefficients whose variance these data do not tell, and why not.

    Of those that may differ; `names` are those of all, and the last is the intercept, if any is.
    """
    last = len(names) - 1 if intercept else -1
    which = np.array(sorted(varies.tolist(), key=lambda c: (c != last, c)), np.int64)
    units = ["super" * (at - 1) + "cluster" if at else "user" for at in range(len(tree.levels))]
    known = Information(units_of(tree), which, tree.records)
    slopes = which[which != last] if intercept else which[:0]
    found = [flat(own, slopes, unit) for own, unit in zip(known.levels, units, strict=True)]
    g, before = known.whole()
    words = [NOISE_WORDS, *(f"that of {names[c]} between {unit}s" for unit in units for c in which)]
    basis = Basis(g, [0], np.sqrt(g[:1, :1]))
    places = [(at, c) for at in range(len(units)) for c in which.tolist()]
    for row, (at, c) in enumerate(places, 1):
        if c in found[at]:
            continue
        if g[row, row] <= NOTHING_LEFT * before[row]:
            alone = ONE_UNIT if len(known.levels[at].a) == 1 else ALONE
            found[at][c] = alone.format(units[at])
        elif (other := basis.add(row)) is not None:
            found[at][c] = A_SUM.format(words[other])
    return found


def holding(tree: Tree, told: Sequence[Bools]) -> Tree:
    """The tree with the variances of all but these coefficients (d,) held at 0, level by level."""
    levels = (replace(at, told=own) for at, own in zip(tree.levels, told, strict=True))
    return replace(tree, levels=tuple(levels))
