"""Very many units with few coefficients, in lanes: what they say of their centres, and its slope.

K, P and q are those of tree.py, G and Q those of absorbed.py. P = A - G'G with K = CC' and
G = C^-1 L'A. What all units of a block have in common, a root or a centre, is one product of a
library's for the whole block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.solvers.known_clusters.absorbed import Known, Level, Sums
from corsage.solvers.known_clusters.lanes import dots, factor, lanes, plus_one, solved
from corsage.solvers.known_clusters.mixed_model import unpack


class Said(NamedTuple):
    """What the units of a block say of their centres: P (d, d, n), q (d, n), yy (n,), ld (n,)."""

    p: Floats
    q: Floats
    yy: Floats
    ld: Floats

    @classmethod
    def of(cls, below: Sums, roots: Floats, group: Ints) -> Said:
        """Their own deviations integrated out, with the roots (g, d, r) of their groups."""
        a, b = lanes(below.a), lanes(below.b)[:, None]
        la = product(roots, group, a)
        c = factor(plus_one(product(roots, group, np.swapaxes(la, 0, 1))))
        g, h = solved(c, la), solved(c, product(roots, group, b))
        return cls(
            less(a, g, g),
            (b - dots(g, h))[:, 0],
            below.yy - dots(h, h)[0, 0],
            below.ld + 2 * np.sum([np.log(c[i, i]) for i in range(len(c))], axis=0),
        )

    def summed(self, parent: Ints, above: int) -> tuple[Floats, ...]:
        """Sums over the units below each of some units above, as P's upper half, q, yy and ld."""
        upper = self.p[np.triu_indices(len(self.p))]
        return tuple(in_groups(part, parent, above) for part in (upper, *self[1:]))


@dataclass(frozen=True)
class LaneDerivative:
    """What `Derivative` is, of blocks of units in lanes: all sums in one pass over them.

    Parameters
    ----------
    blocks : one after the other, which units it is of, and what these say.
    """

    level: Level
    above: Known
    sigma2: float
    groups: int
    blocks: Callable[[], Iterator[tuple[slice, Said]]]

    @cached_property
    def totals(self) -> tuple[Floats, Floats, Floats]:
        """Over the units of each group: of Q's upper half v (g, p), s s' (g, d, d), v v'."""
        d = self.above.mean.shape[1]
        size = d * (d + 1) // 2
        shapes = ((size,), (d, d), (size, size))
        q, outer, pairs = (np.zeros((self.groups, *shape)) for shape in shapes)
        for some, said in self.blocks():
            parent, group = self.level.parent[some], self.level.group[some]
            v, s = self._own(said, parent)
            for g in np.unique(group):
                these = slice(None) if (group == g).all() else group == g
                q[g] += v[:, these].sum(-1)
                outer[g] += s[:, these] @ s[:, these].T
                pairs[g] += v[:, these] @ v[:, these].T
        return q, outer, pairs

    def _own(self, said: Said, parent: Ints) -> tuple[Floats, Floats]:
        """The upper half of Q = P - P C P (p, n), and s = q - P m (d, n)."""
        cp = product(self.above.covariance, parent, said.p)
        mp = product(self.above.mean[..., None], parent, said.p)[0]
        return less(said.p, cp, said.p)[np.triu_indices(len(said.p))], said.q - mp

    def weights(self, groups: int) -> Floats:
        """Sums of Q (g, d, d)."""
        return unpack(self.totals[0], self.above.mean.shape[1])

    def slopes(self, groups: int) -> Floats:
        """G (g, d, d)."""
        return self.weights(groups) - self.totals[1] / self.sigma2

    def pairs(self, groups: int, varies: Ints) -> Floats:
        """Sums of Q_ab Q_cd (g, r, r, r, r)."""
        place = self._places(varies)
        return np.asarray(self.totals[2][:, place[:, :, None, None], place])

    def squares(self, groups: int, varies: Ints) -> Floats:
        """Sums of Q_ab^2 (g, r, r)."""
        place = self._places(varies)
        return np.asarray(self.totals[2][:, place, place])

    def _places(self, varies: Ints) -> Ints:
        """Where the numbers of Q (r, r) are in its upper half."""
        d = self.above.mean.shape[1]
        count = np.arange(d * (d + 1) // 2, dtype=np.float64)
        return unpack(count, d).astype(np.int64)[varies[:, None], varies]


def product(matrices: Floats, which: Ints, rows: Floats) -> Floats:
    """M' X (r, s, n), of rows X (d, s, n) and each unit's own of some matrices (g, d, r)."""
    if len(which) and (which == which[0]).all():
        one = matrices[which[0]]
        return np.asarray((one.T @ rows.reshape(len(one), -1)).reshape(-1, *rows.shape[1:]))
    return dots(lanes(matrices[which]), rows)


def less(whole: Floats, left: Floats, right: Floats) -> Floats:
    """Symmetric matrices (d, d, n): a whole less left' right, of which the upper half is found."""
    out = whole.copy()
    term = np.empty(whole.shape[1:])
    for i in range(len(whole)):
        for k in range(len(left)):
            np.multiply(left[k, i], right[k, i:], out=term[i:])
            np.subtract(out[i, i:], term[i:], out=out[i, i:])
        out[i + 1 :, i] = out[i, i + 1 :]
    return out


def in_groups(values: Floats, group: Ints, count: int) -> Floats:
    """Sums (count, ...) of numbers (..., n) over the units of each group."""
    found = np.zeros((*values.shape[:-1], count))
    if (group == group[0]).all():
        found[..., group[0]] = values.sum(-1)
        return np.moveaxis(found, -1, 0)
    if (group[1:] < group[:-1]).any():
        order = np.argsort(group, kind="stable")
        values, group = values[..., order], group[order]
    present, starts = np.unique(group, return_index=True)
    found[..., present] = np.add.reduceat(values, starts, axis=-1)
    return np.moveaxis(found, -1, 0)
