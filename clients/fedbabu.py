"""FedBABU at the users: the body learns under the initial head; they keep nothing."""

from __future__ import annotations

import numpy as np

from corsage.clients.base import Client, Got, Models, Sent
from corsage.core.arrays import Floats32
from corsage.core.messages.asked import Takes, floats
from corsage.networks.batches import Examples
from corsage.strategies.fedbabu import FedBABUKeys


class FedBABUClient(Client[FedBABUKeys]):
    """The users of FedBABU."""

    takes = Takes(shared={"body": floats("B")})
    own_training = True

    def train(self, got: Got, data: Examples) -> Sent:
        """theta_{i,ext} <- tau epochs of SGD from theta_{G,ext}, under theta_cls^0."""
        return Sent(mean={"body": self.sgd_bodies(got.shared["body"], self.heads(), data)})

    def models(self, got: Got) -> Models:
        """theta_G, or with `fine-tune` what each user makes of it."""
        if got.options.get("fine-tune"):
            return self.adapt(got, self.train_data(got), self.settings.fine_tune_epochs)
        return Models(got.shared["body"], self.heads())

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """theta_i <- epochs of SGD from theta_G, or of its head alone; new users do the same."""
        body, heads = got.shared["body"], self.heads()
        if self.keys.fedbabu_fine_tune == "head":
            return Models(body, self.sgd_heads(body, heads, data, epochs))
        return Models(self.sgd(np.concatenate([body, heads[0]]), data, epochs=epochs))

    def heads(self) -> Floats32:
        """theta_cls^0, one row a user."""
        return np.tile(self.network.initial[self.network.head], (len(self.users), 1))
