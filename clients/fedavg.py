"""FedAvg at the users: train the global model, send it back; fine-tune its head at the end."""

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
        """The global model, or with `fine-tune` its body under a head of each user's own."""
        w = got.shared["model"]
        if got.options.get("fine-tune"):
            return self._fine_tuned(w, self.train_data(got), self.settings.fine_tune_epochs)
        return Models(w)

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """A new user trains the head of the global model."""
        return self._fine_tuned(got.shared["model"], data, epochs)

    def _fine_tuned(self, w: Floats32, data: Examples, epochs: int) -> Models:
        """The global body under heads that the users trained from the global one."""
        body, head = w[self.network.body], w[self.network.head]
        starts = np.broadcast_to(head, (len(self.users), len(head)))
        return Models(body, self.sgd_heads(body, starts, data, epochs, purpose="fine-tune"))
