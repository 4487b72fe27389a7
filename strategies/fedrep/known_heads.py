"""FedRep's heads in known clusters: pulled together within each, and the clusters to their middle.

Lyu et al. 2022, (2.3), over the users' heads while the body phi is frozen (see head_clusters.py):

    min over h, w, wbar of  sum_i f_i(h_i; phi) + gamma/2 |h_i - w_c(i)|^2
                            + sum_j lambda/2 |w_j - wbar|^2

in turns: w and wbar in closed form by the server, then h_i, from where it was, by user i.

A user is part of the problem from its first round on. Until then its head is w_j of its cluster,
and that of a cluster without any such users is wbar; a user that comes after training begins there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from corsage.core.arrays import Arrays, Floats32
from corsage.core.errors import ConfigError
from corsage.core.replies import Outcome, name_users, reading_order
from corsage.solvers.known_clusters.hierarchy import Hierarchy, alpha_of
from corsage.strategies.fedrep.convex_heads import Finding, Heads
from corsage.strategies.rounds.rows import enter, open_ledger, places


@dataclass(frozen=True)
class KnownHeads(Heads):
    """Clusters that are known: h_i (N, P) of the users that were drawn so far.

    Parameters
    ----------
    clusters : the cluster of every user that is there.
    gamma, lam : the pulls of a user to its cluster, and of a cluster to the middle.
    """

    clusters: Mapping[str, str]
    gamma: float
    lam: float

    @property
    def strength(self) -> float:
        """gamma."""
        return self.gamma

    def begin(self) -> Arrays:
        """Nobody has a head yet."""
        self._check(list(self.clusters))
        self.state.scalars["clusters"] = {}
        return {"heads": open_ledger(self.state, [], self.first)}

    def rows(self, users: list[str]) -> Arrays:
        """h_i, its centre w_j, and gamma."""
        centre, strength = self._w(users), np.full(len(users), self.gamma, np.float32)
        return {**self.own(users), "centre": centre, "strength": strength}

    def own(self, users: list[str]) -> Arrays:
        """h_i, or w_j where there is none."""
        where = np.array(places(self.state, users), np.int64)
        rows = self._w(users)
        rows[where >= 0] = self.state.arrays["heads"][where[where >= 0]]
        return {"head": rows}

    def new(self, users: list[str]) -> tuple[Arrays, Arrays]:
        """New users begin at w_j, and are pulled to it."""
        return {}, self.rows(users)

    def template(self) -> Arrays:
        """h_i."""
        return {"head": self.first}

    def merge(self, outcome: Outcome) -> Arrays:
        """Take over the users' heads."""
        users = outcome.users
        self.state.scalars["clusters"] |= {user: self.clusters[user] for user in users}
        heads = self.state.arrays["heads"].copy()
        return {"heads": enter(self.state, heads, users, outcome.rows["head"], self.first)}

    def named(self) -> dict[str, Floats32]:
        """w_j by the cluster's name."""
        return self._centres()[0]

    def findings(self) -> list[Finding]:
        """How far users are from their clusters, and these from the middle."""
        (w, middle), clusters = self._centres(), self.state.scalars["clusters"]
        users, rows = self.state.scalars["users"], []
        for name, centre in w.items():
            mine = [i for i, user in enumerate(users) if clusters[user] == name]
            spread = np.linalg.norm(self.state.arrays["heads"][mine] - centre, axis=1).mean()
            away = np.linalg.norm(centre - middle)
            text = f"{len(mine)} users, mean |h_i - w_j| {spread:.3g}, |w_j - wbar| {away:.3g}"
            rows.append([f"cluster {name}", text])
        return [{"title": "clusters of heads", "rows": rows}]

    def _check(self, users: Sequence[str]) -> None:
        """Refuse users without a known cluster."""
        if missing := [user for user in users if not self.clusters[user]]:
            raise ConfigError(
                f"fedrep-heads=known-clusters: {name_users(missing)} in no known cluster: set "
                "cluster-column or cluster-map (on a device, cluster=NAME in its node config)."
            )

    def _w(self, users: Sequence[str]) -> Floats32:
        """w_j of the users' clusters, wbar where nobody was drawn; without a pull h^0."""
        self._check(users)
        w, middle = self._centres() if self.gamma else ({}, self.first)
        rows = np.tile(middle, (len(users), 1))
        for place, user in enumerate(users):
            rows[place] = w.get(self.clusters[user], middle)
        return rows

    def _centres(self) -> tuple[dict[str, Floats32], Floats32]:
        """The minimisers w_j, by the clusters' names, and wbar for the heads that are there."""
        users, known = self.state.scalars["users"], self.state.scalars["clusters"]
        names = sorted({known[user] for user in users}, key=reading_order)
        if not names:
            return {}, self.first
        number = np.array([names.index(known[user]) for user in users])
        gamma = np.full(len(users), self.gamma)
        alpha = alpha_of(np.full(len(names), self.lam), np.bincount(number, gamma))
        centres, middle = Hierarchy(number, gamma, alpha).means(self.state.arrays["heads"])
        w: NDArray[np.float64] = (1 - alpha)[:, None] * centres + alpha[:, None] * middle
        return dict(zip(names, w.astype(np.float32), strict=True)), middle.astype(np.float32)
