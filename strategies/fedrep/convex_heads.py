"""FedRep's heads in clusters: what the server does with them while bodies are averaged.

While heads train the body phi is frozen, so over linear heads the users' losses f_i(h_i; phi) are
convex, and personalisation methods for convex losses apply to heads on top of a representation that
is learned with them. Two are built in, this one and known_heads.py; both need each user's head at
the server.

Convex clustering (Armacki et al. 2022, (3), canonical lam; heads of a cluster become the same):

    min over h_1, ..., h_N of  sum_i f_i(h_i; phi) + lam sum_{(i,j) in E} |h_i - h_j|

by Douglas-Rachford splitting (solvers/convex_clustering/splitting.py): the server has s_i, and Y, the prox of
(lam/rho) Omega at S. A user takes its tau epochs from y_i on f_i(h) + rho/2 |h - (2 y_i - s_i)|^2,
and then s_i += h_i - y_i. From y_i on, because there the gradient of that is
grad f_i(y_i) + rho (s_i - y_i), the residual of the optimality condition: so the solution stands
still, up to the noise of SGD, however short the users' training is. Nor need users keep anything.

E are all pairs in the paper. Heads have thousands of parameters, and two users of one cluster are
then about as far apart as their few samples make them, in directions of their own: with all pairs,
the lam that fuses a cluster fuses everybody. So by default E are near pairs only, of which one is
among the other's k nearest by s_i. The server finds them anew in each round: it is one convex
problem as soon as they stay the same.

A user is part of the problem from its first round on. Until then it has the mean of all y_i, or
FedRep's initial head if there are none. A user that comes after training takes, of all clusters'
heads, the one with the least loss on its training data, as y and s of one round of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from corsage.core.arrays import Arrays, Floats32
from corsage.core.replies import Outcome, reading_order
from corsage.solvers.convex_clustering.reading import candidate
from corsage.solvers.convex_clustering.wide_prox import TOLERANCE, neighbours, wide_prox
from corsage.strategies.rounds.rows import enter, open_ledger, places
from corsage.strategies.rounds.state import State

Finding = dict[str, Any]
NAMED = 8  # users of a cluster that are named


@dataclass(frozen=True)
class Heads:
    """Heads stay at home, each user's own: FedRep as it is.

    Parameters
    ----------
    state : the strategy's.
    first : the initial head (P,).
    """

    state: State
    first: Floats32

    @property
    def strength(self) -> float:
        """How strongly a head is pulled while it trains."""
        return 0.0

    def begin(self) -> Arrays:
        """What the server holds of the heads before the first round."""
        return {}

    def rows(self, users: list[str]) -> Arrays:
        """What users train with: where a head begins, the centre and the strength of its pull."""
        return {}

    def own(self, users: list[str]) -> Arrays:
        """The head that each user evaluates."""
        return {}

    def new(self, users: list[str]) -> tuple[Arrays, Arrays]:
        """What new users adapt with: the same for all, and one row for each."""
        return {}, {}

    def template(self) -> Arrays:
        """What of its head a user sends back."""
        return {}

    def merge(self, outcome: Outcome) -> Arrays:
        """What the server holds after a round."""
        return {}

    def named(self) -> dict[str, Floats32]:
        """The clusters' heads by name."""
        return {}

    def findings(self) -> list[Finding]:
        """What became of the heads."""
        return []


@dataclass(frozen=True)
class ConvexHeads(Heads):
    """Clusters that appear: s_i (N, P) and the distinct y_i (K, P), with each user's number."""

    lam: float
    rho: float
    near: int

    @property
    def strength(self) -> float:
        """rho."""
        return self.rho

    def begin(self) -> Arrays:
        """Nobody has a head yet."""
        s = open_ledger(self.state, [], self.first)
        return {"s": s, "heads": s, "labels": np.zeros(0, np.int64)}

    def rows(self, users: list[str]) -> Arrays:
        """y_i, the centre 2 y_i - s_i, and rho."""
        y, s = self._y(users), self._of(users, self.state.arrays["s"])
        return {"head": y, "centre": 2 * y - s, "strength": np.full(len(users), self.rho, "f4")}

    def own(self, users: list[str]) -> Arrays:
        """y_i."""
        return {"head": self._y(users)}

    def new(self, users: list[str]) -> tuple[Arrays, Arrays]:
        """All clusters' heads: a new user takes the best of them as its y and s."""
        heads = self.state.arrays["heads"] if len(self.state.arrays["heads"]) else self.first[None]
        return {"heads": heads}, {"strength": np.full(len(users), self.rho, "f4")}

    def template(self) -> Arrays:
        """h_i."""
        return {"head": self.first}

    def merge(self, outcome: Outcome) -> Arrays:
        """s_i += h_i - y_i, and the prox at the new S; sums are of double precision."""
        users, mean = outcome.users, self._mean()
        y = self._y(users).astype(np.float64)
        moved = self._of(users, self.state.arrays["s"]) + (outcome.rows["head"] - y)
        before = self.state.arrays["heads"][self.state.arrays["labels"]]
        s = enter(self.state, self.state.arrays["s"].copy(), users, moved.astype(np.float32), mean)
        start = np.concatenate([before, s[len(before) :]])
        weights = neighbours(s.astype(np.float64), self.near) if self.near else None
        found = wide_prox(s, self.lam / self.rho, start, weights)
        self.state.scalars["heads-gap"] = found.gap
        return {"s": s, "heads": found.models.astype(np.float32), "labels": found.labels}

    def named(self) -> dict[str, Floats32]:
        """By number."""
        return {str(k): head for k, head in enumerate(self.state.arrays["heads"])}

    def findings(self) -> list[Finding]:
        """How many distinct heads there are, and whose they are."""
        arrays, users = self.state.arrays, self.state.scalars["users"]
        labels, heads = arrays["labels"], arrays["heads"]
        gap = self.state.scalars["heads-gap"]
        sure = "exactly" if gap <= TOLERANCE else f"up to a relative gap of {gap:.0e}"
        fused = f"fused {sure}" if len(heads) < len(labels) else "none are fused"
        rows = [["distinct heads", f"{len(heads)} of {len(labels)} users, {fused}"]]
        read = candidate(heads[labels].astype(np.float64))
        if read is not None and read.max() + 1 < len(heads) and 2 * (read.max() + 1) <= len(labels):
            rows.append(["at the largest gap", f"{read.max() + 1} clusters, not fused"])
            labels = read
        if labels.max() + 1 < len(labels):
            rows += [
                [f"cluster {k}", listed([users[i] for i in np.flatnonzero(labels == k)])]
                for k in range(labels.max() + 1)
            ]
        return [{"title": "clusters of heads", "rows": rows}]

    def _of(self, users: Sequence[str], rows: Floats32) -> Floats32:
        """The rows of some users; those that have none yet have the mean of all y_i."""
        where = np.array(places(self.state, users), np.int64)
        return np.asarray(np.concatenate([rows, self._mean()[None]])[where])

    def _y(self, users: Sequence[str]) -> Floats32:
        return self._of(users, self.state.arrays["heads"][self.state.arrays["labels"]])

    def _mean(self) -> Floats32:
        """The mean of all y_i."""
        labels = self.state.arrays["labels"]
        if not len(labels):
            return self.first
        return np.asarray(self.state.arrays["heads"][labels].mean(axis=0))


def listed(users: list[str]) -> str:
    """How many users, and the first of them."""
    names = ", ".join(sorted(users, key=reading_order)[:NAMED])
    return f"{len(users)} users: {names}{', ...' if len(users) > NAMED else ''}"
