"""FedAvg at the users: train the global model, send it back; fine-tune it at the end."""

from __future__ import annotations

import numpy as np

from corsage.clients.base import Client, Got, K, Models, Sent
from corsage.core.arrays import Floats32
from corsage.core.messages.asked import Takes, floats
from corsage.networks.batches import Examples
from corsage.networks.proximal import Pull


class FedAvgClient(Client[K]):
    """The users of FedAvg, and of methods that change its local training."""

    takes = Takes(shared={"model": floats("P")})
    own_training = True

    def train(self, got: Got, data: Examples) -> Sent:
        """w_k <- E epochs of SGD from w_t."""
        w = got.shared["model"]
        return Sent(mean={"model": self.sgd(w, data, pull=self.pull(w))})

    def pull(self, w: Floats32) -> Pull | None:
        """A term that is added to the gradient of the loss: in FedAvg none."""
        return None

    def models(self, got: Got) -> Models:
        """The global model."""
        return Models(got.shared["model"])

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """A new user trains the head of the global model."""
        return self.tuned(got, data, epochs, "head")

    def tuned(self, got: Got, data: Examples, epochs: int, part: str) -> Models:
        """The global model trained by each user, or the global body under a head of its own."""
        w = got.shared["model"]
        if part == "all":
            return Models(self.sgd(w, data, epochs=epochs, purpose="fine-tune"))
        body, head = w[self.network.body], w[self.network.head]
        starts = np.broadcast_to(head, (len(self.users), len(head)))
        return Models(body, self.sgd_heads(body, starts, data, epochs, purpose="fine-tune"))
