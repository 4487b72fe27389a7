"""FedRep whose heads form clusters by themselves: convex clustering over the learned body.

FedRep (Collins et al. 2021, Algorithm 1) learns the body phi. Over it the heads solve the problem
of Armacki et al. 2022, (3) with its canonical lam, in which heads of a cluster become the same:

    min over h_1, ..., h_N of  sum_i f_i(h_i; phi) + lam sum_{(i,j) in E} |h_i - h_j|

by Douglas-Rachford splitting (solvers/convex_clustering/splitting.py): the server has s_i, and Y,
the prox of (lam/rho) Omega at S. A user takes its tau epochs from y_i on
f_i(h) + rho/2 |h - (2 y_i - s_i)|^2, and then s_i += h_i - y_i. From y_i on, because there the
gradient of that is grad f_i(y_i) + rho (s_i - y_i), the residual of the optimality condition: so
the solution stands still, up to the noise of SGD, however short the users' training is.

E are all pairs in the paper. Heads have thousands of parameters, and two users of one cluster are
then about as far apart as their few samples make them, in directions of their own: with all pairs,
the lam that fuses a cluster fuses everybody. So by default E are near pairs only, of which one is
among the other's k nearest by s_i. The server finds them anew in each round: it is one convex
problem as soon as they stay the same.

A head whose s_i is ten median distances from the median of all is in no pair: y_i is s_i.

A user is part of the problem from its first round on. Until then it has the mean of all y_i, or
FedRep's initial head if there are none. A user that comes after training takes, of all clusters'
heads, the one with the least loss on its training data, as y and s of one round of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord

from corsage.core.arrays import Arrays, Floats32, Ints
from corsage.core.keys import key
from corsage.core.messages.replies import Replies, reading_order
from corsage.core.registry import attachment
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

MEMBERS_NAMED = 8
"""Users of a cluster that are named in the findings."""


@dataclass(frozen=True)
class FedRepConvexKeys(FedRepKeys):
    """Keys of FedRep with heads in clusters that appear."""

    title = "FedRep, heads by convex clustering"

    fedrep_convex_lambda: float = key(0.2, "weight of |h_i - h_j|, each pair once (lam)", low=0.0)
    fedrep_convex_neighbours: int = key(
        10,
        "pairs are those of which one is among the other's so many nearest; 0: all pairs, as in "
        "the paper",
        low=0,
    )
    fedrep_convex_rho: float = key(
        0.3, "penalty of the splitting (rho), which sets its pace", low=1e-9
    )


@dataclass
class FedRepConvexState(BodyState):
    """phi, and where the splitting stands over the heads of the users that were drawn so far.

    Parameters
    ----------
    users : whose rows these are.
    s : s_i, one row a user.
    y : the distinct y_i, one row a cluster.
    labels : which row of `y` is each user's y_i.
    gap : the relative duality gap of the last prox.
    """

    users: list[str]
    s: Floats32
    y: Floats32
    labels: Ints
    gap: float = 0.0


class FedRepConvex(PulledHeads[FedRepConvexKeys, FedRepConvexState]):
    """The server: it holds the body phi, and s_i and y_i of the users' heads."""

    name = "fedrep-convex"
    tuned = ("own",)

    def prepare(self) -> None:
        """The users' pull is rho."""
        check_pull(self.config.train, "fedrep-convex-rho", self.keys.fedrep_convex_rho)

    def initial(self, network: Network) -> FedRepConvexState:
        """phi^0; nobody has a head yet."""
        check_head(self, network, self.keys.fedrep_convex_rho)
        nobody = np.zeros((0, len(network.initial[network.head])), np.float32)
        body = network.initial[network.body]
        return FedRepConvexState(body, [], nobody, nobody, np.zeros(0, np.int64))

    def send(self, users: list[str]) -> Parcel:
        """phi^t; y_i, at which a head begins, its centre 2 y_i - s_i, and rho."""
        y, s = self._y(users), self._rows(users, self.state.s)
        return Parcel(self.shared(), {"head": y, "centre": 2 * y - s, **self._rho(users)})

    def show(self, users: list[str], options: Mapping[str, Any]) -> Parcel:
        """phi^t and y_i; new users get all clusters' heads, of which they take the best."""
        if options.get("fine-tune"):
            return self.send(users)
        if not options.get("adapt"):
            return Parcel(self.shared(), {"head": self._y(users)})
        heads = self.state.y if len(self.state.y) else self._mean()[None]
        return Parcel({**self.shared(), "heads": heads}, self._rho(users))

    def merge(self, replies: Replies) -> FedRepConvexState:
        """phi^{t+1}, the mean of phi_i; s_i += h_i - y_i, and Y the prox at the new S."""
        from corsage.solvers.convex_clustering.exact.wide_prox import neighbours, wide_prox

        state, keys, users = self.state, self.keys, replies.users
        step = replies.rows["head"] - self._y(users).astype(np.float64)
        moved = (self._rows(users, state.s) + step).astype(np.float32)
        known, s = enter(state.users, state.s, users, moved, self._mean())
        before, near = state.y[state.labels], keys.fedrep_convex_neighbours
        start = np.concatenate([before, s[len(before) :]])
        rules, far = attachment("robust"), np.zeros(len(s), bool)
        far = far if rules is None else rules.outlying(s)  # they are alone
        weights = neighbours(s[~far].astype(np.float64), near) if near else None
        pull = keys.fedrep_convex_lambda / keys.fedrep_convex_rho
        found = wide_prox(s[~far], pull, start[~far], weights)
        y = np.concatenate([found.models.astype(np.float32), s[far]])
        labels = np.empty(len(s), np.int64)
        labels[~far], labels[far] = found.labels, np.arange(len(found.models), len(y))
        return FedRepConvexState(replies.mean["body"], known, s, y, labels, found.gap)

    def user_clusters(self, row: str) -> dict[str, str]:
        """The users' clusters: those with the same head, by its number."""
        labels = self.state.labels
        return {user: str(c) for user, c in zip(self.state.users, labels, strict=False)}

    def findings(self) -> list[Finding]:
        """The number of distinct heads, and their users."""
        return [Finding(TITLE, distinct(self.state))]

    def named_arrays(self) -> ArrayRecord:
        """phi, and the clusters' heads by number."""
        heads = {str(k): head for k, head in enumerate(self.state.y)}
        return named_heads(self.job.network, self.state.body, heads)

    def _rho(self, users: Sequence[str]) -> Arrays:
        """The strength of the pull on each head."""
        return {"strength": np.full(len(users), self.keys.fedrep_convex_rho, np.float32)}

    def _y(self, users: Sequence[str]) -> Floats32:
        """y_i of some users."""
        return self._rows(users, self.state.y[self.state.labels])

    def _rows(self, users: Sequence[str], rows: Floats32) -> Floats32:
        """The rows of some users; those that have none yet have the mean of all y_i."""
        where = places(self.state.users, users)  # -1 is the last row
        return np.asarray(np.concatenate([rows, self._mean()[None]])[where])

    def _mean(self) -> Floats32:
        """The mean of all y_i, or the initial head."""
        network = self.job.network
        if not len(self.state.labels):
            return network.initial[network.head]
        return np.asarray(self.state.y[self.state.labels].mean(axis=0))


def distinct(state: FedRepConvexState) -> list[tuple[str, str]]:
    """The number of distinct heads, and clusters; those at the largest gap if none are fused."""
    from corsage.solvers.convex_clustering.exact.wide_prox import TOLERANCE
    from corsage.solvers.convex_clustering.reading import candidate

    labels, heads = state.labels, state.y
    sure = "exactly" if state.gap <= TOLERANCE else f"up to a relative gap of {state.gap:.0e}"
    fused = f"fused {sure}" if len(heads) < len(labels) else "none are fused"
    rows = [("distinct heads", f"{len(heads)} of {len(labels)} users, {fused}")]
    read = candidate(heads[labels].astype(np.float64))
    if read is not None and read.max() + 1 < len(heads) and 2 * (read.max() + 1) <= len(labels):
        rows.append(("at the largest gap", f"{read.max() + 1} clusters, not fused"))
        labels = read
    if labels.max() + 1 == len(labels):
        return rows
    return rows + [
        (f"cluster {k}", listed([state.users[i] for i in np.flatnonzero(labels == k)]))
        for k in range(labels.max() + 1)
    ]


def listed(users: list[str]) -> str:
    """The number of users, and the first of them."""
    names = ", ".join(sorted(users, key=reading_order)[:MEMBERS_NAMED])
    return f"{len(users)} users: {names}{', ...' if len(users) > MEMBERS_NAMED else ''}"
