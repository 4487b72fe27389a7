"""What users say of themselves, in one order, and what a fit to it makes of the state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.core.seeding import uniforms, user_keys
from corsage.solvers.known_clusters.blocks import Sums
from corsage.solvers.known_clusters.lanes import AT_ONCE, WIDEST
from corsage.solvers.known_clusters.mixed_model import by_cluster, unpack
from corsage.solvers.known_clusters.standard import Standard
from corsage.solvers.known_clusters.tree import Tree
from corsage.solvers.known_clusters.variances.choice import grouped
from corsage.solvers.known_clusters.variances.scoring import Fitted
from corsage.strategies.known_clusters.kept_sums import KeptSums

if TYPE_CHECKING:
    from corsage.strategies.known_clusters.mixed_model import MixedModelState


@dataclass(frozen=True)
class Users:
    """What users say, in the order of clusters and names.

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
    def of(cls, said: KeptSums, names: list[str], d: int) -> Users:
        """From what they said, in whatever order that came."""
        place = {name: number for number, name in enumerate(names)}
        cluster = np.array([*map(place.__getitem__, said.clusters)])
        key = [*zip(cluster.tolist(), map(len, said.users), said.users, strict=True)]
        order = np.array(sorted(range(len(key)), key=key.__getitem__))
        if (order[1:] > order[:-1]).all():  # as they mostly come: many rows are not copied
            return cls(said.rows, said.counts, cluster, said.users, names, d)
        users = [said.users[row] for row in order]
        return cls(said.rows[order], said.counts[order], cluster[order], users, names, d)

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


def remember(
    state: MixedModelState,
    found: Fitted,
    units: Standard,
    names: list[str],
    above: list[list[str]],
) -> None:
    """Centres, how sure they are, and strengths by coordinate, of these clusters.

    Of the units `above` them, level by level, their models.
    """
    places = [state.clusters.known.index(name) for name in names]
    known, fit = found.found.known_above(), state.estimates.covariance
    state.w[places] = units.models(known[0].mean)
    state.model = units.models(known[-1].mean[0])
    state.above = [
        dict(zip(level, units.models(own.mean), strict=True))
        for level, own in zip(above, known[1:-1], strict=True)
    ]
    state.covariance[places] = units.covariances(known[0].covariance)
    state.around = units.covariances(known[-1].covariance[0])
    state.unknown = units.matrix @ found.found.middle.unknown
    with np.errstate(divide="ignore", over="ignore"):
        users = np.broadcast_to(fit.users, (len(names), *fit.users.shape[1:]))
        state.used[places] = state.gamma[places] = fit.sigma2 / np.diagonal(users, 0, 1, 2)
        state.lam[places] = fit.sigma2 / np.diag(fit.clusters.sum(0))
