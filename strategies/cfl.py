"""CFL: one model a cluster of users, and clusters that split when their users disagree.

Sattler, Mueller, Samek: Clustered Federated Learning: Model-Agnostic Distributed Multi-Task
Optimization Under Privacy Constraints, IEEE TNNLS 32(8), 2021, Algorithm 3. User i trains the
model of its cluster c, Delta theta_i is its update, theta_c += Delta theta_c, their mean over c.
All users begin in one cluster (FedAvg). A cluster near a stationary point of its mean loss, while
its users are not near theirs,

    |Delta theta_c| < eps_1  and  max_i |Delta theta_i| > eps_2,

is cut into the two halves with the least cosine similarity across,
c_1, c_2 = argmin max_{i in c_1, j in c_2} alpha_ij, if the cut is wide enough for the error
gamma_max of the users' gradients: gamma_max < sqrt((1 - alpha_cross_max) / 2). Both halves go on
from theta_c and may be cut again in later rounds. (The code published with the paper cuts by
complete linkage, which is not that argmin, and has no gamma_max.)

The paper asks all users in each round. With fraction-train < 1 the mean is over the users of the
round, as in FedAvg, and the test of a cut uses each member's last known update. It waits until
every member has sent one since its cluster began; only members whose replies were dropped so far
are not waited for (at a cut they stay with the half that keeps the cluster's number).

The norms depend on lr, epochs and model. `state.scalars` has what they were when each cluster was
last looked at ("norms": of the mean, the largest), all cuts ("splits") and all users' "clusters".

A user that comes later goes down the tree of cuts, as in the paper's Algorithm 4: at each cut it
trains the model that was cut, and takes the side whose updates are more like its own. The paper
keeps all updates and compares with the nearest; here each side is kept as one mean direction.
A user that joins in the middle of training is put into the largest cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from corsage.core.arrays import Arrays, Floats32
from corsage.core.keys import Keys, key
from corsage.core.replies import Outcome
from corsage.core.wire import decode
from corsage.networks.network import Network
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.cluster_means import cluster_means, named_models
from corsage.strategies.rounds.rows import enter, open_ledger, places, user_weights

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class CFLKeys(Keys):
    """Keys of CFL."""

    title = "CFL"

    cfl_eps1: float = key(
        0.1, "a cluster may be cut if the norm of its mean update is below this", low=0.0
    )
    cfl_eps2: float = key(0.2, "... and that of some user's update above this", low=0.0)
    cfl_gamma_max: float = key(
        0.0,
        "... and sqrt((1 - largest similarity across the cut) / 2) above this bound on the "
        "relative error of a user's gradient",
        low=0.0,
        high=1.0,
    )


class CFL(Strategy):
    """The server of CFL: the clusters, their models, and each user's last update."""

    name = "cfl"

    def initial(self, network: Network) -> Arrays:
        """C = {{1, ..., m}}, theta_0, and no update of anybody."""
        updates = open_ledger(self.state, self.users, np.zeros_like(network.initial))
        self.state.scalars |= {"clusters": dict.fromkeys(self.users, 0), "fresh": []}
        self.state.scalars |= {"splits": [], "norms": {}}
        return {"models": network.initial[None].copy(), "updates": updates}

    def send(self, users: list[str]) -> tuple[Arrays, Arrays]:
        """Each user gets the model of its cluster."""
        return {}, {"model": self.state.arrays["models"][self._labels(users)]}

    def show(self, users: list[str], options: Mapping[str, Any]) -> tuple[Arrays, Arrays]:
        """New users get the whole tree of cuts: it is they who go down."""
        if not options.get("adapt"):
            return self.send(users)
        return {k: v for k, v in self.state.arrays.items() if k != "updates"}, {}

    def template(self) -> Arrays:
        """A user sends back its model."""
        return {"model": self.state.arrays["models"][0]}

    def merge(self, outcome: Outcome) -> Arrays:
        """theta_c += mean of Delta theta_i over the cluster's users; then cut what is to be cut."""
        arrays, scalars, users = dict(self.state.arrays), self.state.scalars, outcome.users
        models, labels = arrays["models"], self._labels(users)
        scalars["clusters"] |= dict(zip(users, labels, strict=True))
        updates = outcome.rows["model"] - models[labels]
        weights = user_weights(outcome, self.config.train.weighting)
        arrays["models"] = models + cluster_means(updates, labels, weights, np.zeros_like(models))
        none = np.zeros_like(models[0])
        arrays["updates"] = enter(self.state, arrays["updates"], users, updates, none)
        scalars["fresh"] = sorted({*scalars["fresh"], *users})
        for c in range(len(models)):
            self._cut(c, arrays)
        return arrays

    def _labels(self, users: Sequence[str]) -> list[int]:
        """The users' clusters; for a user that is in none, the largest."""
        clusters: dict[str, int] = self.state.scalars["clusters"]
        sizes = np.bincount([*clusters.values(), 0])
        return [clusters.get(user, int(sizes.argmax())) for user in users]

    def _cut(self, c: int, arrays: Arrays) -> None:
        """Cut cluster c in two if the paper's conditions hold, and remember the cut."""
        assert isinstance(self.keys, CFLKeys)
        scalars, keys = self.state.scalars, self.keys
        members = [user for user in self.users if scalars["clusters"].get(user) == c]
        known = [user for user in members if user in set(scalars["fresh"])]
        waiting = set(members) - set(known) - set(self.state.dropped)
        if waiting or len(known) < 2:
            return
        updates = arrays["updates"][places(self.state, known)]
        mean, largest = norms(updates, self._weights(known))
        scalars["norms"] |= {str(c): [round(mean, 6), round(largest, 6)]}
        if mean >= keys.cfl_eps1 or largest <= keys.cfl_eps2:
            return
        second, cross = bipartition(similarities(updates))
        if keys.cfl_gamma_max >= np.sqrt(max(1 - cross, 0.0) / 2):
            return
        k, leaving = len(arrays["models"]), [u for u, b in zip(known, second, strict=True) if b]
        scalars["clusters"] |= dict.fromkeys(leaving, k)
        scalars["fresh"] = [user for user in scalars["fresh"] if user not in set(members)]
        scalars["splits"].append(
            {
                "round": self.state.round + 1,
                "cluster": c,
                "new": k,
                "sizes": [len(members) - len(leaving), len(leaving)],
                "similarity": round(cross, 4),
            }
        )
        parent = arrays["models"][c]
        sides = np.stack([direction(updates[~second]), direction(updates[second])])
        arrays["models"] = np.concatenate([arrays["models"], parent[None]])
        for name, entry in (
            ("cuts", np.array([c, k])),
            ("cut-models", parent),
            ("cut-directions", sides),
        ):
            before = [arrays[name]] if name in arrays else []
            arrays[name] = np.concatenate([*before, entry[None]])

    def _weights(self, users: Sequence[str]) -> Matrix:
        """The weights of members in the mean of their updates."""
        if self.config.train.weighting == "examples":
            return np.array([self.roster.members[user].train for user in users], np.float64)
        return np.ones(len(users))

    def accept(self, named: ArrayRecord) -> Arrays:
        """A model's state dict: the model that the one cluster begins with."""
        network = self.network
        return {**self.initial(network), "models": network.flatten(decode(named))[None]}

    def named_arrays(self) -> ArrayRecord:
        """Each cluster's parameters by name."""
        return named_models(self.network, self.state.arrays["models"])


def norms(updates: Floats32, weights: Matrix) -> tuple[float, float]:
    """|mean of Delta theta_i| and max_i |Delta theta_i|."""
    mean = np.average(updates, axis=0, weights=weights)
    return float(np.linalg.norm(mean)), float(np.linalg.norm(updates, axis=1).max())


def similarities(updates: Floats32) -> Matrix:
    """alpha_ij, the cosine of Delta theta_i and Delta theta_j; 0 with an update that is 0."""
    units = directions(updates)
    alpha: Matrix = units @ units.T
    return alpha


def directions(updates: Floats32) -> Matrix:
    """Updates of length 1; one that is 0 stays 0."""
    norms = np.linalg.norm(updates, axis=1, keepdims=True).astype(np.float64)
    units: Matrix = np.divide(updates, norms, out=np.zeros(updates.shape), where=norms > 0)
    return units


def direction(updates: Floats32) -> Floats32:
    """The mean direction of one side of a cut."""
    return np.asarray(directions(updates).mean(axis=0), np.float32)


def bipartition(alpha: Matrix) -> tuple[NDArray[np.bool_], float]:
    """argmin over cuts of the largest alpha across (the paper's Algorithm 1), and that alpha.

    It is the weakest link of the tree of strongest links, here grown from user 0 (Prim): whatever
    the cut, one of the tree's links goes across. True marks the half without user 0.
    """
    n = len(alpha)
    best, parent, todo = alpha[0].copy(), np.zeros(n, int), np.arange(n) > 0
    order, links = [], np.full(n, np.inf)
    while todo.any():
        node = int(np.where(todo, best, -np.inf).argmax())
        todo[node], links[node] = False, best[node]
        order.append(node)
        nearer = todo & (alpha[node] > best)
        best[nearer], parent[nearer] = alpha[node][nearer], node
    weakest = int(links.argmin())
    second = np.arange(n) == weakest
    for node in order:  # parents come before their children
        second[node] |= second[parent[node]]
    return second, float(links[weakest])
