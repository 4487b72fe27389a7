"""FedRep: a shared body, a personal head for each user.

Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized
Federated Learning, ICML 2021, Algorithm 1. In round t the server sends the body phi^t to r n users;
user i takes tau steps on its head h_i with the body frozen, then trains the body with its new head
frozen, and returns phi_i. The server averages: phi^{t+1} = 1/(r n) sum_i phi_i. Heads stay at home.

Beyond the paper, heads may learn from each other (`fedrep-heads`): see head_clusters.py and
known_heads.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord

from corsage.core.arrays import Arrays
from corsage.core.errors import ConfigError, ModelError
from corsage.core.keys import Keys, key
from corsage.core.replies import Outcome
from corsage.core.wire import encode
from corsage.networks.network import Network
from corsage.strategies.fedrep.convex_heads import ConvexHeads, Heads
from corsage.strategies.fedrep.known_heads import KnownHeads
from corsage.strategies.rounds.base import Strategy


@dataclass(frozen=True)
class FedRepKeys(Keys):
    """Keys of FedRep."""

    title = "FedRep"

    head_epochs: int = key(
        10, "epochs of the head (tau), the body frozen, before the body's", low=0
    )
    fedrep_heads: str = key(
        "own",
        "heads stay at home (the paper), or are sent up and drawn together: in clusters that "
        "appear, or in known ones",
        choices=("own", "convex-clustering", "known-clusters"),
    )
    fedrep_heads_lambda: float = key(
        0.2, "convex-clustering: weight of |h_i - h_j|, each pair once", low=0.0
    )
    fedrep_heads_neighbours: int = key(
        10,
        "convex-clustering: pairs are those of which one is among the other's so many nearest; "
        "0: all pairs, as in the paper",
        low=0,
    )
    fedrep_heads_rho: float = key(
        0.3, "convex-clustering: penalty of the splitting (rho), which sets its pace", low=1e-9
    )
    fedrep_heads_gamma: float = key(
        1.0, "known-clusters: pull of a head to its cluster's (gamma)", low=0.0
    )
    fedrep_heads_middle: float = key(
        0.1, "known-clusters: pull of a cluster's head to the middle (lambda)", low=0.0
    )


class FedRep(Strategy):
    """The server of FedRep: it holds the body phi, and of the heads what `fedrep-heads` needs."""

    name = "fedrep"

    @property
    def heads(self) -> Heads:
        """The server's part in the heads: none in the paper."""
        keys, state, network = self.keys, self.state, self.network
        assert isinstance(keys, FedRepKeys)
        first = network.initial[network.head]
        if keys.fedrep_heads == "convex-clustering":
            pulls = keys.fedrep_heads_lambda, keys.fedrep_heads_rho
            return ConvexHeads(state, first, *pulls, keys.fedrep_heads_neighbours)
        if keys.fedrep_heads == "known-clusters":
            clusters = {user: member.cluster for user, member in self.roster.members.items()}
            pulls = keys.fedrep_heads_gamma, keys.fedrep_heads_middle
            return KnownHeads(state, first, clusters, *pulls)
        return Heads(state, first)

    def initial(self, network: Network) -> Arrays:
        """phi^0."""
        self.check(network)
        if not network.cacheable:
            self.note(f"features are not cached, heads train over the whole model: {network.why}")
        elif not network.linear_head:
            self.note("the head is not one linear layer: users' heads train one after the other")
            if self.heads.strength:
                self.note("nor is its problem convex: clusters of heads are a heuristic")
        return {"body": network.initial[network.body], **self.heads.begin()}

    def send(self, users: list[str]) -> tuple[Arrays, Arrays]:
        """phi^t for all; a user's h_i is at home."""
        return self._body, self.heads.rows(users) if users else {}

    def show(self, users: list[str], options: Mapping[str, Any]) -> tuple[Arrays, Arrays]:
        """phi^t, and the heads that are not at home."""
        if not options.get("adapt"):
            return self._body, self.heads.own(users) if users else {}
        shared, rows = self.heads.new(users)
        return {**self._body, **shared}, rows

    def template(self) -> Arrays:
        """A user sends back phi_i."""
        return {**self._body, **self.heads.template()}

    def merge(self, outcome: Outcome) -> Arrays:
        """phi^{t+1}, the mean of phi_i."""
        return {**self._body, **outcome.mean, **self.heads.merge(outcome)}

    def findings(self) -> list[dict[str, Any]]:
        """What became of the heads, if the server knows."""
        return self.heads.findings()

    def named_arrays(self) -> ArrayRecord:
        """phi by the parameters' names, and the clusters' heads."""
        network = self.network
        named = network.named(self.state.arrays["body"], network.body)
        for cluster, head in self.heads.named().items():
            own = network.named(head, network.head)
            named |= {f"cluster-{cluster}.{name}": array for name, array in own.items()}
        return encode(named)

    def check(self, network: Network) -> None:
        """Refuse what a pull on heads cannot work with."""
        train, pull = self.config.train, self.heads.strength
        most = 2 * (1 + train.momentum)  # from there on SGD diverges on pull/2 |h - centre|^2
        if train.lr * pull >= most:
            raise ConfigError(
                f"fedrep-heads: lr times the pull on heads is {train.lr * pull:.3g}, SGD diverges "
                f"from {most:g} on: lower fedrep-heads-rho (or -gamma), or lr."
            )
        if pull and not all(block.trained for block in network.blocks_of(network.head)):
            raise ModelError(
                "fedrep-heads: the head has parts that are not trained (running statistics, frozen "
                "parameters), which cannot be clustered: name another head=."
            )

    @property
    def _body(self) -> Arrays:
        """phi^t; the state itself where there is no more to it: one object is encoded once."""
        arrays = self.state.arrays
        return arrays if len(arrays) == 1 else {"body": arrays["body"]}
