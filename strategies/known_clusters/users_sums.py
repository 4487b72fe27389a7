"""What users say of themselves, in one order, and what a fit to it makes of the state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.core.seeding import uniforms, user_keys
from corsage.solvers.known_clusters.choice import grouped
from corsage.solvers.known_clusters.mixed_model import by_cluster, unpack
from corsage.solvers.known_clusters.scoring import Fitted
from corsage.solvers.known_clusters.standard import Standard
from corsage.solvers.known_clusters.tree import Tree
from corsage.strategies.known_clusters.kept_sums import KeptSums

if TYPE_CHECKING:
    from corsage.strategies.known_clusters.mixed_model import MixedModelState


@dataclass(frozen=True)
class Users:
    """What users say, in the order of clusters and names.

    Parameters
    ----------
    a, b, yy, counts : A_i (n, d, d), b_i (n, d), y'y (n,), and records (n,).
    cluster : the number of each user's cluster among `names` (n,).
    users : who they are.
    """

    a: Floats
    b: Floats
    yy: Floats
    counts: Floats
    cluster: Ints
    users: list[str]
    names: list[str]

    @classmethod
    def of(cls, said: KeptSums, names: list[str], d: int) -> Users:
        """From what they said, in whatever order that came."""
        place = {name: number for number, name in enumerate(names)}
        cluster = [place[name] for name in said.clusters]
        key = [*zip(cluster, map(len, said.users), said.users, strict=True)]
        order, size = sorted(range(len(key)), key=key.__getitem__), d * (d + 1) // 2
        sums = said.rows[order]
        return cls(
            unpack(sums[:, :size], d),
            sums[:, size:-1],
            sums[:, -1],
            said.counts[order],
            np.array(cluster)[order],
            [said.users[row] for row in order],
            names,
        )

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
