"""Local training at the users: a model of one's own, and nobody else's data."""

from __future__ import annotations

from corsage.clients.base import Client, Got, K, Models, Sent
from corsage.networks.batches import Examples


class LocalClient(Client[K]):
    """Users that learn alone."""

    personal = True
    own_training = True

    def train(self, got: Got, data: Examples) -> Sent:
        """E more epochs of SGD on one's own model."""
        own = self.remembered("model", self.network.initial)
        return Sent(keep={"model": self.sgd(own, data)})

    def models(self, got: Got) -> Models:
        """Each user's own model."""
        return Models(self.remembered("model", self.network.initial))
