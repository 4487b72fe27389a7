"""FedRep whose heads are in known clusters: pulled together within each, these to their middle.

FedRep (Collins et al. 2021, Algorithm 1) learns the body phi. Over it the heads solve the problem
of Lyu et al. 2022, (2.3):

    min over h, w, wbar of  sum_i f_i(h_i; phi) + gamma/2 |h_i - w_c(i)|^2
                            + sum_j lambda/2 |w_j - wbar|^2

in turns: w and wbar in closed form by the server, then h_i, from where it was, by user i in its
tau epochs.

A user is part of the problem from its first round on. Until then its head is w_j of its cluster,
and that of a cluster without any such users is wbar; a user that comes after training begins there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord

from corsage.core.arrays import Bools, Floats32
from corsage.core.errors import ConfigError
from corsage.core.keys import key
from corsage.core.messages.replies import Replies, name_users, reading_order
from corsage.core.registry import attachment
from corsage.solvers.known_clusters.hierarchy import Hierarchy, alpha_of
from corsage.strategies.fedrep.fedrep import FedRepKeys
from corsage.strategies.fedrep.pulled_heads import (
    TITLE,
    PulledHeads,
    check_head,
    check_pull,
    named_heads,
)
from corsage.strategies.rounds.means.user_rows import enter, places
from corsage.strategies.rounds.results import Finding
from corsage.strategies.rounds.state import BodyState
from corsage.strategies.rounds.turns import Parcel

if TYPE_CHECKING:
    from corsage.networks.network import Network

Centres = tuple[dict[str, Floats32], Floats32]
"""w_j by the cluster's name, and wbar."""


@dataclass(frozen=True)
class FedRepKnownKeys(FedRepKeys):
    """Keys of FedRep with heads in known clusters."""

    title = "FedRep, heads in known clusters"
    example: ClassVar = {"dataset": "moons"}
    asks = "users in known clusters"

    fedrep_known_gamma: float = key(1.0, "pull of a head to its cluster's (gamma)", low=0.0)
    fedrep_known_lambda: float = key(
        0.1, "pull of a cluster's head to the middle (lambda)", low=0.0
    )


@dataclass
class FedRepKnownState(BodyState):
    """phi, and the heads of the users that were drawn so far.

    Parameters
    ----------
    users : whose rows these are.
    h : h_i, one row a user.
    clusters : c(i), the name of each of these users' cluster.
    """

    users: list[str]
    h: Floats32
    clusters: dict[str, str]


class FedRepKnown(PulledHeads[FedRepKnownKeys, FedRepKnownState]):
    """The server: it holds the body phi, and the users' heads h_i."""

    name = "fedrep-known"
    tuned = ("own",)

    def prepare(self) -> None:
        """The users' pull is gamma."""
        check_pull(self.config.train, "fedrep-known-gamma", self.keys.fedrep_known_gamma)

    def initial(self, network: Network) -> FedRepKnownState:
        """phi^0; nobody has a head yet, and everybody must have a cluster."""
        check_head(self, network, self.keys.fedrep_known_gamma)
        self._clusters(self.members.roster.users)
        nobody = np.zeros((0, len(network.initial[network.head])), np.float32)
        return FedRepKnownState(network.initial[network.body], [], nobody, {})

    def send(self, users: list[str]) -> Parcel:
        """phi^t; h_i, at which a head begins, its centre w_j, and gamma."""
        w, gamma = self._w(users), self.keys.fedrep_known_gamma
        strength = np.full(len(users), gamma, np.float32)
        return Parcel(self.shared(), {"head": self._h(users, w), "centre": w, "strength": strength})

    def show(self, users: list[str], options: Mapping[str, Any]) -> Parcel:
        """phi^t and h_i; new users begin at w_j, and are pulled to it."""
        if options.get("adapt") or options.get("fine-tune"):
            return self.send(users)
        return Parcel(self.shared(), {"head": self._h(users, self._w(users))})

    def merge(self, replies: Replies) -> FedRepKnownState:
        """phi^{t+1}, the mean of phi_i, and the users' h_i."""
        state, new, users = self.state, replies.rows["head"], replies.users
        known, h = enter(state.users, state.h, users, new, self._first)
        own = dict(zip(users, self._clusters(users), strict=True))
        return FedRepKnownState(replies.mean["body"], known, h, {**state.clusters, **own})

    def user_clusters(self, row: str) -> dict[str, str]:
        """Each user's known cluster."""
        return dict(self.state.clusters)

    def findings(self) -> list[Finding]:
        """The distances of users from their clusters, and of these from the middle."""
        state, (w, middle) = self.state, self._centres()
        order, rows = np.array([state.clusters[user] for user in state.users]), []
        for name, centre in w.items():
            mine = order == name
            spread = np.linalg.norm(state.h[mine] - centre, axis=1).mean()
            away = np.linalg.norm(centre - middle)
            text = f"{mine.sum()} users, mean |h_i - w_j| {spread:.3g}, |w_j - wbar| {away:.3g}"
            rows.append((f"cluster {name}", text))
        out = np.flatnonzero(far(state.h, order.tolist()))
        aside = [(f"user {state.users[row]}", "far from all others in its cluster") for row in out]
        return [
            Finding(TITLE, rows),
            *([Finding("Set aside from centres", aside)] if aside else []),
        ]

    def named_arrays(self) -> ArrayRecord:
        """phi, and w_j by the cluster's name."""
        return named_heads(self.job.network, self.state.body, self._centres()[0])

    @property
    def _first(self) -> Floats32:
        """The initial head."""
        network = self.job.network
        return network.initial[network.head]

    def _clusters(self, users: Sequence[str]) -> list[str]:
        """The users' clusters; ConfigError if one has none."""
        members = self.members.everybody
        if missing := [user for user in users if not members[user].cluster]:
            raise ConfigError(
                f"{self.name}: {name_users(missing)} in no known cluster: set cluster-column or "
                "cluster-map (on a device, cluster=NAME in its node config)."
            )
        return [members[user].cluster for user in users]

    def _h(self, users: Sequence[str], w: Floats32) -> Floats32:
        """h_i, or w_j where there is none."""
        where, rows = places(self.state.users, users), w.copy()
        rows[where >= 0] = self.state.h[where[where >= 0]]
        return rows

    def _w(self, users: Sequence[str]) -> Floats32:
        """w_j of the users' clusters, wbar where nobody was drawn; without a pull h^0."""
        clusters, pulled = self._clusters(users), self.keys.fedrep_known_gamma > 0
        w, middle = self._centres() if pulled else ({}, self._first)
        rows = np.tile(middle, (len(users), 1))
        for row, cluster in zip(rows, clusters, strict=True):
            row[:] = w.get(cluster, middle)
        return rows

    def _centres(self) -> Centres:
        """The minimisers w_j and wbar for the heads that are there."""
        state, keys = self.state, self.keys
        if not state.users:
            return {}, self._first
        clusters = [state.clusters[user] for user in state.users]
        return centres(state.h, clusters, keys.fedrep_known_gamma, keys.fedrep_known_lambda)


def far(h: Floats32, clusters: Sequence[str]) -> Bools:
    """Heads ten median distances from the median of their cluster: none is drawn to them."""
    rules, labels = attachment("robust"), np.unique(clusters, return_inverse=True)[1]
    return np.zeros(len(h), bool) if rules is None else np.asarray(rules.outlying_in(h, labels))


def centres(h: Floats32, clusters: Sequence[str], gamma: float, lam: float) -> Centres:
    """w_j and wbar that minimise (2.3) for given h_i, of which c(i) are the clusters' names."""
    names = sorted(set(clusters), key=reading_order)
    number = np.array([names.index(cluster) for cluster in clusters])
    pulls = np.where(far(h, clusters), 0.0, gamma)
    alpha = alpha_of(np.full(len(names), lam), np.bincount(number, pulls))
    means, middle = Hierarchy(number, pulls, alpha).means(h)
    w = (1 - alpha)[:, None] * means + alpha[:, None] * middle
    return dict(zip(names, w.astype(np.float32), strict=True)), middle.astype(np.float32)
