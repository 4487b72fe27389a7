"""FedRep's heads at the server: what both ways of drawing them together have in common.

While heads train the body phi is frozen, so over linear heads the users' losses f_i(h_i; phi) are
convex, and personalisation methods for convex losses apply to heads on top of a representation
that is learned with them. Two are built in, fedrep_convex.py and fedrep_known.py. Both need each
user's head at the server, which says where a head begins, what it is pulled to and how strongly;
the user sends it back beside phi_i. Users need keep nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from flwr.app import ArrayRecord

from corsage.core.arrays import Arrays, Floats32
from corsage.core.configuration.key_groups import TrainKeys
from corsage.core.errors import ConfigError, ModelError
from corsage.core.messages.encoding import encode
from corsage.strategies.fedrep.fedrep import FedRepKeys, note_features
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.state import BodyState

if TYPE_CHECKING:
    from corsage.networks.network import Network

TITLE = "clusters of heads"
"""The title of the findings about them, in the report and on the terminal."""


K = TypeVar("K", bound=FedRepKeys)
S = TypeVar("S", bound=BodyState)


class PulledHeads(Strategy[K, S]):
    """Base of the servers that hold the body phi, and draw users' heads together.

    `robust` is the average of the bodies: a head moves others by its pull alone.
    """

    by_user = ("head",)

    @classmethod
    def epochs(cls, train: TrainKeys, keys: FedRepKeys) -> float:
        """Those of the head and those of the body."""
        return train.local_epochs + keys.head_epochs

    def shared(self) -> Arrays:
        """The body phi^t, for all users."""
        return {"body": self.state.body}

    def template(self) -> Arrays:
        """A user sends back phi_i and h_i."""
        network = self.job.network
        return {"body": self.state.body, "head": network.initial[network.head]}


def check_pull(train: TrainKeys, key: str, strength: float) -> None:
    """Refuse a pull strength/2 |h - centre|^2 on heads that SGD cannot follow."""
    most = 2 * (1 + train.momentum)  # from there on SGD with momentum diverges on it
    if train.optimizer == "sgd" and train.lr * strength >= most:
        raise ConfigError(
            f"{key}={strength:g}: lr times the pull on heads is {train.lr * strength:.3g}, SGD "
            f"diverges from {most:g} on: lower {key} or lr."
        )


def check_head(strategy: Strategy[Any, Any], network: Network, strength: float) -> None:
    """Refuse a head that cannot be pulled, and say what makes its training slow or inexact."""
    note_features(strategy, network)
    if not strength:
        return
    if network.cacheable and not network.linear_head:
        strategy.job.note("nor is its problem convex: clusters of heads are a heuristic")
    if not all(block.trained for block in network.blocks_of(network.head)):
        raise ModelError(
            f"{strategy.name}: the head has parts that are not trained (running statistics, frozen "
            "parameters), which cannot be clustered: name another head=."
        )


def named_heads(network: Network, body: Floats32, heads: Mapping[str, Floats32]) -> ArrayRecord:
    """phi by the parameters' names, and each cluster's head as `cluster-NAME.fc2.weight`, ..."""
    named = network.named(body, network.body)
    for cluster, head in heads.items():
        own = network.named(head, network.head)
        named |= {f"cluster-{cluster}.{name}": array for name, array in own.items()}
    return encode(named)
