"""FedPer at the users: body and head learn together, the body goes back, the head stays.

Arivazhagan et al. 2019, Algorithm 1, client side. A user that was never drawn keeps its initial
head.
"""

from __future__ import annotations

import numpy as np

from corsage.clients.base import Client, Got, K, Models, Sent
from corsage.core.arrays import Floats32
from corsage.core.messages.asked import Takes, floats
from corsage.networks.batches import Examples


class FedPerClient(Client[K]):
    """Users with one part of the model in common, `shared`, and one of their own, `own`."""

    takes = Takes(shared={"body": floats("B")})

    personal = True
    own_training = True
    shared: str = "body"
    own: str = "head"

    def train(self, got: Got, data: Examples) -> Sent:
        """(W_B,j, W_Pj) <- e epochs of SGD on both at once."""
        models = self.sgd(self.joined(got), data)
        shared, own = models[:, self.part(self.shared)], models[:, self.part(self.own)]
        return Sent(mean={self.shared: shared}, keep={self.own: own})

    def models(self, got: Got) -> Models:
        """The common body under each user's own head."""
        return Models(got.shared["body"], self.remembered("head", self.initial("head")))

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """A new user learns its personalisation layers over the common base, which stands."""
        body, heads = got.shared["body"], self.remembered("head", self.initial("head"))
        return Models(body, self.sgd_heads(body, heads, data, epochs))

    def part(self, name: str) -> slice:
        """The place of body or head in the model."""
        return self.network.body if name == "body" else self.network.head

    def initial(self, name: str) -> Floats32:
        """Body or head of the initial model."""
        return self.network.initial[self.part(name)]

    def joined(self, got: Got) -> Floats32:
        """Whole models (users, P): the shared part as sent, and each user's own.

        A user that has none yet begins with what was sent of it, or else with the initial one.
        """
        rows = np.empty((len(self.users), self.network.whole.stop), np.float32)
        start = got.shared.get(self.own, self.initial(self.own))
        rows[:, self.part(self.shared)] = got.shared[self.shared]
        rows[:, self.part(self.own)] = self.remembered(self.own, start)
        return rows
