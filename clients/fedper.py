"""FedPer at the users: body and head learn together, the body goes back, the head stays.

Arivazhagan et al. 2019, Algorithm 1, client side. A user that was never drawn keeps its initial
head.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from corsage.clients.base import Client, Evaluation, Fit
from corsage.networks.parts import train_head_group, train_models


class FedPerClient(Client):
    """Users with one part of the model in common, `shared`, and one of their own, `own`."""

    personal = True
    shared: ClassVar[str] = "body"
    own: ClassVar[str] = "head"

    def fit(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """(W_B,j, W_Pj) <- e epochs of SGD on both at once."""
        data = self.train_data()
        orders = self.orders("model", data, self.settings.local_epochs)
        starts = self.models(dict(zip(self.names, parameters, strict=True)))
        models = train_models(self.network, starts, data, orders, self.settings)
        self.keep(self.own, models[:, self.part(self.own)])
        shared = models[:, self.part(self.shared)]
        return [shared], int(data.sizes.sum()), {"num-examples": data.sizes}

    def evaluate(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """The common body under each user's own head."""
        (body,) = parameters
        return self.scored_heads(body, self.remembered("head", self.initial("head")))

    def adapt(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """A new user learns its personalisation layers over the common base, which stands."""
        (body,) = parameters
        data = self.train_data()
        heads = self.remembered("head", self.initial("head"))
        orders = self.orders("head", data, int(config["adapt-epochs"]))
        heads = train_head_group(self.network, body, heads, data, orders, self.settings)
        return self.scored_heads(body, heads)

    def part(self, name: str) -> slice:
        """Where body or head lies in the model."""
        return self.network.body if name == "body" else self.network.head

    def initial(self, name: str) -> NDArray[Any]:
        """Body or head of the initial model."""
        return self.network.initial[self.part(name)]

    def models(self, sent: dict[str, NDArray[Any]]) -> NDArray[Any]:
        """Whole models (users, P): the shared part as sent, and each user's own.

        A user that has none yet begins with what was sent of it, or else with the initial one.
        """
        rows = np.empty((len(self.users), self.network.whole.stop), np.float32)
        start = sent.get(self.own, self.initial(self.own))
        rows[:, self.part(self.shared)] = sent[self.shared]
        rows[:, self.part(self.own)] = self.remembered(self.own, start)
        return rows
