"""The sums of all users in one order, from which covariances are fitted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from corsage.core.arrays import Bools, Floats, Ints
from corsage.core.seeding import uniforms, user_keys
from corsage.solvers.known_clusters.blocks import Sums
from corsage.solvers.known_clusters.lanes import AT_ONCE, WIDEST
from corsage.solvers.known_clusters.mixed_model import by_cluster, unpack
from corsage.solvers.known_clusters.standard import Standard
from corsage.solvers.known_clusters.tree import Tree
from corsage.solvers.known_clusters.variances.scoring import Fitted
from corsage.solvers.known_clusters.variances.shape_choice import grouped


@dataclass(frozen=True)
class Users:
    """Users' sums, in the order of clusters and names.

    Parameters
    ----------
    rows : A_i's upper half, b_i and y'y (n, d(d+1)/2 + d + 1).
    counts : records (n,).
    cluster : the number of each user's cluster among `names` (n,).
    users : who they are.
    """

    rows: Floats
    counts: Floats
    cluster: Ints
    users: list[str]
    names: list[str]
    d: int

    @classmethod
    def of(
        cls, rows: Floats, counts: Floats, clusters: list[str], users: list[str],
        names: list[str], d: int,
    ) -> Users:  # fmt: skip
        """From rows that came in any order; each user's cluster is one of `names`."""
        place = {name: number for number, name in enumerate(names)}
        cluster = np.array([*map(place.__getitem__, clusters)])
        key = [*zip(cluster.tolist(), map(len, users), users, strict=True)]
        order = np.array(sorted(range(len(key)), key=key.__getitem__))
        if (order[1:] > order[:-1]).all():  # as they mostly come: many rows are not copied
            return cls(rows, counts, cluster, users, names, d)
        ordered = [users[row] for row in order]
        return cls(rows[order], counts[order], cluster[order], ordered, names, d)

    def sums(self, units: Standard) -> Sums:
        """A, b, yy in standard units; of very many they lie in memory as lanes are read."""
        n, d = len(self.rows), self.d
        if n <= AT_ONCE or d > WIDEST:
            return units.sums(*self._parts(self.rows))
        a, b, yy = np.empty((d, d, n)), np.empty((d, n)), np.empty(n)
        for first in range(0, n, AT_ONCE):
            some = slice(first, first + AT_ONCE)
            found = units.sums(*self._parts(self.rows[some]))
            a[..., some], b[:, some] = np.moveaxis(found.a, 0, -1), found.b.T
            yy[some] = found.yy
        return Sums.of(np.moveaxis(a, -1, 0), b.T, yy)

    def plain(self) -> Sums:
        """A, b, yy in the model's units."""
        return Sums.of(*self._parts(self.rows))

    def at(self, some: Bools) -> Users:
        """Some users, in those of the clusters that they are in."""
        rows = np.flatnonzero(some)
        there, cluster = np.unique(self.cluster[rows], return_inverse=True)
        users, names = [self.users[row] for row in rows], [self.names[place] for place in there]
        return Users(self.rows[rows], self.counts[rows], cluster, users, names, self.d)

    def total(self) -> tuple[Floats, Floats, float]:
        """A, b and y'y of all together."""
        a, b, yy = self._parts(self.rows.sum(0, keepdims=True))
        return a[0], b[0], float(yy[0])

    def _parts(self, rows: Floats) -> tuple[Floats, Floats, Floats]:
        """A, b, yy of some rows."""
        d = self.d
        return unpack(rows[:, : -d - 1], d), rows[:, -d - 1 : -1], rows[:, -1]

    def drawn(self, seed: int) -> Floats:
        """A random number of each, whatever the others are."""
        return uniforms(user_keys(seed, "left out", self.users), 0)


def explained(tree: Tree, found: Fitted) -> list[float]:
    """Shares of records, users and clusters in the variance of a record around x'wbar.

    That of x'(theta - w) is x'Dx, which depends on the record: it counts with its mean.
    """
    own = found.covariances
    whole = grouped(tree, found.shapes)
    squares = by_cluster(tree.users.a, whole.levels[0].group, len(own[0])) / tree.records
    parts = [1.0, float(np.sum(squares * own[0]))]
    parts += [float(np.sum(squares.sum(0) * one[0])) for one in own[1:]]
    return [part / sum(parts) for part in parts]
