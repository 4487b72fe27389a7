"""FedRep: a shared body, a personal head for each user.

Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized
Federated Learning, ICML 2021, Algorithm 1. In round t the server sends the body phi^t to r n users;
user i takes tau steps on its head h_i with the body frozen, then trains the body with its new head
frozen, and returns phi_i. The server averages: phi^{t+1} = 1/(r n) sum_i phi_i. Heads stay at home.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from corsage.core.configuration.key_groups import TrainKeys
from corsage.core.keys import EPOCH_LIMIT, Keys, key
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.state import BodyState

if TYPE_CHECKING:
    from corsage.networks.network import Network


@dataclass(frozen=True)
class FedRepKeys(Keys):
    """Keys of FedRep."""

    title = "FedRep"
    needs: ClassVar = {"model": "mlp"}  # a body, whatever others need

    head_epochs: int = key(
        10, "epochs of the head (tau) before the body's", low=0, limit=EPOCH_LIMIT, tuned=(1, 20)
    )


class FedRep(Strategy[FedRepKeys, BodyState]):
    """The server of FedRep: it holds the body phi."""

    name = "fedrep"
    tuned = ("own",)

    @classmethod
    def epochs(cls, train: TrainKeys, keys: FedRepKeys) -> float:
        """Those of the head and those of the body."""
        return train.local_epochs + keys.head_epochs

    def initial(self, network: Network) -> BodyState:
        """The first body, phi^0."""
        note_features(self, network)
        return BodyState(network.initial[network.body])


def note_features(strategy: Strategy[Any, Any], network: Network) -> None:
    """Say of a model that it is all head, and what makes training heads slower than could be."""
    note, all_head, network = strategy.job.note, network.body.stop == 0, network.rear
    if all_head:
        note("the model is a head and nothing else: nothing is shared, users train alone")
    if not network.cacheable:
        note(f"features are not cached, heads train over the whole model: {network.why}")
    elif not network.head_layers:
        note("the head is no chain of linear layers: users' heads train one after the other")
