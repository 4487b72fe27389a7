"""FedBABU at the users: the body learns under the initial head; they keep nothing."""

from __future__ import annotations

import numpy as np

from corsage.clients.base import Client, Got, K, Models, Sent
from corsage.core.arrays import Floats32
from corsage.core.messages.asked import Takes, floats
from corsage.networks.batches import Examples


class FedBABUClient(Client[K]):
    """The users of FedBABU."""

    takes = Takes(shared={"body": floats("B")})
    own_training = True

    def train(self, got: Got, data: Examples) -> Sent:
        """theta_{i,ext} <- tau epochs of SGD from theta_{G,ext}, under theta_cls^0."""
        return Sent(mean={"body": self.sgd_bodies(got.shared["body"], self.heads(), data)})

    def models(self, got: Got) -> Models:
        """theta_G."""
        return Models(got.shared["body"], self.heads())

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """A new user fine-tunes all of theta_G, as the paper has it."""
        return self.tuned(got, data, epochs, "all")

    def tuned(self, got: Got, data: Examples, epochs: int, part: str) -> Models:
        """theta_i <- epochs of SGD from theta_G, or of its head alone."""
        body, heads = got.shared["body"], self.heads()
        if part == "head":
            return Models(body, self.sgd_heads(body, heads, data, epochs))
        return Models(self.sgd(np.concatenate([body, heads[0]]), data, epochs=epochs))

    def heads(self) -> Floats32:
        """theta_cls^0, one row a user."""
        return np.tile(self.network.initial[self.network.head], (len(self.users), 1))
