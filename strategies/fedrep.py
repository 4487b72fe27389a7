"""FedRep: a shared body, a personal head for each user.

Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized
Federated Learning, ICML 2021, Algorithm 1. In round t the server sends the body phi^t to r n users;
user i takes tau steps on its head h_i with the body frozen, then trains the body with its new head
frozen, and returns phi_i. The server averages: phi^{t+1} = 1/(r n) sum_i phi_i. Heads stay at home.
"""

from __future__ import annotations

from dataclasses import dataclass

from corsage.app.keys import Keys, key
from corsage.app.wire import Arrays
from corsage.models.network import Network
from corsage.strategies.base import Strategy


@dataclass(frozen=True)
class FedRepKeys(Keys):
    """Keys of FedRep."""

    title = "FedRep"

    head_epochs: int = key(
        10, "epochs of the head (tau), the body frozen, before the body's", low=0
    )


class FedRep(Strategy):
    """The server of FedRep: it holds the body phi and nothing of any head."""

    name = "fedrep"

    def initial(self, network: Network) -> Arrays:
        """phi^0."""
        if not network.cacheable:
            self.note(f"features are not cached, heads train over the whole model: {network.why}")
        elif not network.linear_head:
            self.note("the head is not one linear layer: users' heads train one after the other")
        return {"body": network.initial[network.body]}
