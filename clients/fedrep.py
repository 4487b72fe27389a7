"""FedRep at the users: tau epochs of the head, then the body, then the body goes back.

Collins et al. 2021, Algorithm 1, lines of the client. The head is user i's own and never sent; a
user that was never drawn keeps its initial head.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from corsage.clients.base import Client, Evaluation, Fit
from corsage.clients.heads import train_bodies, train_head_group
from corsage.clients.training import Examples
from corsage.strategies.fedrep import FedRepKeys


class FedRepClient(Client):
    """The users of FedRep."""

    personal = True

    def fit(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """h_i <- tau epochs of SGD at (h_i, phi^t), then phi_i <- SGD at (h_i, phi)."""
        assert isinstance(self.task.keys, FedRepKeys)
        (body,) = parameters
        data = self.train_data()
        heads = self._heads(body, data, self.task.keys.head_epochs)
        orders = self.orders("body", data, self.settings.local_epochs)
        bodies = train_bodies(self.network, body, heads, data, orders, self.settings)
        self.keep("head", heads)
        return [bodies], int(data.sizes.sum()), {"num-examples": data.sizes}

    def evaluate(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """The new body under each user's own head."""
        (body,) = parameters
        heads = self.remembered("head", self.network.initial[self.network.head])
        return self.scored_heads(body, heads)

    def adapt(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """A new user learns a head and nothing else (the paper's section 5.2)."""
        (body,) = parameters
        return self.scored_heads(body, self._heads(body, self.train_data(), config["adapt-epochs"]))

    def _heads(self, body: NDArray[Any], data: Examples, epochs: int) -> NDArray[Any]:
        """h_i after some epochs of SGD with the body frozen."""
        heads = self.remembered("head", self.network.initial[self.network.head])
        orders = self.orders("head", data, epochs)
        return train_head_group(self.network, body, heads, data, orders, self.settings)
