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

The norms depend on lr, epochs and model; the state has what they were when each cluster was last
looked at.

A user that comes later goes down the tree of cuts, as in the paper's Algorithm 4: at each cut it
trains the model that was cut, and takes the side whose updates are more like its own. The paper
keeps all updates and compares with the nearest; here each side is kept as one mean direction.
A user that joins in the middle of training is put into the largest cluster.

With `robust` the rule takes the place of the mean update of each cluster, and the norms that say
whether it is cut are of updates that are not far from the median of all. Where it is cut is told by
the directions of all: who is far out is cut off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord

from corsage.core.arrays import Array, Arrays, Bools, Floats, Floats32, Ints
from corsage.core.keys import Keys, key
from corsage.core.messages.replies import Replies
from corsage.core.registry import attached
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.means.user_rows import enter, places, user_weights
from corsage.strategies.rounds.model_arrays import without_statistics
from corsage.strategies.rounds.results import Finding
from corsage.strategies.rounds.several_models import named_models
from corsage.strategies.rounds.turns import Parcel

if TYPE_CHECKING:
    from corsage.networks.network import Network

FAR_OFF = 4.0
"""Median distances from the median update at which, with `robust`, one does not count."""


@dataclass(frozen=True)
class CFLKeys(Keys):
    """Keys of CFL."""

    title = "CFL"
    example: ClassVar = {"dataset": "ellipses", "model": "linear", "lr": "0.1"}

    cfl_eps1: float = key(
        0.1,
        "a cluster may be cut if the norm of its mean update is below this",
        tuned=(0.03, 0.3),
        low=0.0,
    )
    cfl_eps2: float = key(0.2, "... and that of some user's update above this", low=0.0)
    cfl_gamma_max: float = key(
        0.0,
        "... and sqrt((1 - largest similarity across the cut) / 2) above this bound on the "
        "relative error of a user's gradient",
        low=0.0,
        high=1.0,
    )


@dataclass
class Cut:
    """A cluster cut in two: what it was, which number the new one has, how alike the sides were."""

    round: int
    cluster: int
    new: int
    sizes: list[int]
    similarity: float


@dataclass
class CFLState:
    """The clusters' models, and each user's last update.

    Parameters
    ----------
    models : theta_c, one row a cluster.
    users, updates : Delta theta_i as of user i's last round, and whose rows these are.
    clusters : each user's cluster.
    fresh : users that sent an update since their cluster was made.
    splits : all cuts.
    norms : of each cluster when it was last looked at: |mean update|, the largest |update|.
    cuts, cut_models, cut_directions : for users that come later: (cluster, new) of each cut, the
        model that was cut, and the mean direction of the updates on each side.
    """

    models: Floats32
    users: list[str]
    updates: Floats32
    clusters: dict[str, int]
    fresh: list[str] = field(default_factory=list)
    splits: list[Cut] = field(default_factory=list)
    norms: dict[int, list[float]] = field(default_factory=dict)
    cuts: Ints | None = None
    cut_models: Floats32 | None = None
    cut_directions: Floats32 | None = None


class CFL(Strategy[CFLKeys, CFLState]):
    """The server of CFL: the clusters, their models, and each user's last update."""

    name = "cfl"
    by_user = ("model",)

    def initial(self, network: Network) -> CFLState:
        """C = {{1, ..., m}}, theta_0, and no update of anybody."""
        users = self.members.users
        updates = np.zeros((len(users), len(network.initial)), np.float32)
        models = network.initial[None].copy()
        return CFLState(models, users, updates, dict.fromkeys(users, 0))

    def shared(self) -> Arrays:
        """Nothing is the same for all."""
        return {}

    def send(self, users: list[str]) -> Parcel:
        """Each user gets the model of its cluster."""
        return Parcel(rows={"model": self.state.models[self._labels(users)]})

    def show(self, users: list[str], options: Mapping[str, Any]) -> Parcel:
        """New users get the whole tree of cuts: it is they who go down."""
        state = self.state
        if not options.get("adapt"):
            return self.send(users)
        if state.cuts is None or state.cut_models is None or state.cut_directions is None:
            return Parcel({"models": state.models})
        cut_models, directions = state.cut_models, state.cut_directions
        tree: Arrays = {"cuts": state.cuts, "cut-models": cut_models, "cut-directions": directions}
        return Parcel({"models": state.models, **tree})

    def user_clusters(self, row: str) -> dict[str, str]:
        """Each user's cluster, by its number."""
        return {user: str(c) for user, c in self.state.clusters.items()}

    def findings(self) -> list[Finding]:
        """If no cluster was cut, the condition that did not hold, and what would make it hold."""
        state, keys = self.state, self.keys
        if state.splits:
            return []
        mean, largest = state.norms.get(0, [0.0, 0.0])
        if not state.norms:
            why = "not all users have sent an update: fraction-train=1, or more rounds"
        elif mean >= keys.cfl_eps1:
            why = f"|mean update| {mean:.3g} is not below cfl-eps1={keys.cfl_eps1:g}: more rounds"
        elif largest <= keys.cfl_eps2:
            why = f"no |update| is above cfl-eps2={keys.cfl_eps2:g}, the largest is {largest:.3g}: "
            why += "a larger lr, more local-epochs or a smaller cfl-eps2"
        else:
            why = f"updates are too alike for cfl-gamma-max={keys.cfl_gamma_max:g}"
        return [Finding("clusters by CFL", [("none was cut", why)])]

    def template(self) -> Arrays:
        """A user sends back its model."""
        return {"model": self.state.models[0]}

    def merge(self, replies: Replies) -> CFLState:
        """theta_c += mean of Delta theta_i over the cluster's users; then cut what is to be cut."""
        state, users = self.state, replies.users
        models, labels = state.models, self._labels(users)
        updates = replies.rows["model"] - models[labels]
        share = self.config.federation.max_share
        weights = user_weights(replies, self.config.train.weighting, share)
        moves = self.averaging.of_clusters("model", updates, labels, weights, np.zeros_like(models))
        first, parents = np.zeros_like(models[0]), [cut.cluster for cut in state.splits]
        known, rows = enter(state.users, state.updates, users, updates, first)
        means = models + moves
        if self.server_step:
            means = self.server_step.of_clusters(models, means, labels, parents)
        state = replace(
            state,
            models=means,
            users=known,
            updates=rows,
            clusters=state.clusters | dict(zip(users, labels, strict=True)),
            fresh=sorted({*state.fresh, *users}),
        )
        for c in range(len(models)):
            self._cut(c, state)
        return state

    def _labels(self, users: Sequence[str]) -> list[int]:
        """The users' clusters; for a user that is in none, the largest."""
        clusters = self.state.clusters
        sizes = np.bincount([*clusters.values(), 0])
        return [clusters.get(user, int(sizes.argmax())) for user in users]

    def _cut(self, c: int, state: CFLState) -> None:
        """Cut cluster c in two if the paper's conditions hold."""
        keys = self.keys
        members = [user for user in self.members.users if state.clusters.get(user) == c]
        known = [user for user in members if user in set(state.fresh)]
        waiting = set(members) - set(known) - set(self.progress.dropped)
        if waiting or len(known) < 2:
            return
        network = self.job.network
        updates = without_statistics(network, state.updates[places(state.users, known)])
        near = ~attached("robust").outlying(updates, FAR_OFF) if self.averaging.on else slice(None)
        mean, largest = norms(updates[near], self._weights(known)[near])
        state.norms = {**state.norms, c: [round(mean, 6), round(largest, 6)]}
        if mean >= keys.cfl_eps1 or largest <= keys.cfl_eps2:
            return
        second, cross = bipartition(similarities(updates))
        if keys.cfl_gamma_max >= np.sqrt(max(1 - cross, 0.0) / 2):
            return
        leaving = [user for user, away in zip(known, second, strict=True) if away]
        sizes = [len(members) - len(leaving), len(leaving)]
        cut = Cut(self.progress.round + 1, c, len(state.models), sizes, round(cross, 4))
        sides = np.stack([direction(updates[~second]), direction(updates[second])])
        make_cut(state, cut, leaving, set(members), sides)

    def _weights(self, users: Sequence[str]) -> Floats:
        """The weights of members in the mean of their updates."""
        if self.config.train.weighting == "examples":
            members = self.members.everybody
            return np.array([members[user].train for user in users], np.float64)
        return np.ones(len(users))

    def accept(self, named: Arrays) -> CFLState:
        """A model's state dict: the model that the one cluster begins with."""
        network = self.job.network
        return replace(self.initial(network), models=network.flatten(named)[None])

    def named_arrays(self) -> ArrayRecord:
        """Each cluster's parameters by name."""
        return named_models(self.job.network, self.state.models)


def make_cut(
    state: CFLState, cut: Cut, leaving: list[str], members: set[str], sides: Floats32
) -> None:
    """Both halves go on from theta_c; the cut is remembered for users that come later."""
    state.clusters = {**state.clusters, **dict.fromkeys(leaving, cut.new)}
    state.fresh = [user for user in state.fresh if user not in members]
    state.splits = [*state.splits, cut]
    parent = state.models[cut.cluster]
    state.models = np.concatenate([state.models, parent[None]])
    state.cuts = appended(state.cuts, np.array([cut.cluster, cut.new]))
    state.cut_models = appended(state.cut_models, parent)
    state.cut_directions = appended(state.cut_directions, sides)


def appended(rows: Array | None, row: Array) -> Array:
    """The rows and one more; the first one if there are none yet."""
    return row[None] if rows is None else np.concatenate([rows, row[None]])


def norms(updates: Floats32, weights: Floats) -> tuple[float, float]:
    """|mean of Delta theta_i| and max_i |Delta theta_i|."""
    mean = np.average(updates, axis=0, weights=weights)
    return float(np.linalg.norm(mean)), float(np.linalg.norm(updates, axis=1).max())


def similarities(updates: Floats32) -> Floats:
    """alpha_ij, the cosine of Delta theta_i and Delta theta_j; 0 with an update that is 0."""
    units = directions(updates)
    alpha: Floats = units @ units.T
    return alpha


def directions(updates: Floats32) -> Floats:
    """Updates of length 1; one that is 0 stays 0."""
    norms = np.linalg.norm(updates, axis=1, keepdims=True).astype(np.float64)
    units: Floats = np.divide(updates, norms, out=np.zeros(updates.shape), where=norms > 0)
    return units


def direction(updates: Floats32) -> Floats32:
    """The mean direction of one side of a cut."""
    return np.asarray(directions(updates).mean(axis=0), np.float32)


def bipartition(alpha: Floats) -> tuple[Bools, float]:
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
