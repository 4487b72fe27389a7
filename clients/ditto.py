"""Ditto at the users: the global model as in FedAvg, then the personal one beside it."""

from __future__ import annotations

from corsage.clients.base import Client, Got, Models, Sent
from corsage.core.arrays import Floats32
from corsage.core.messages.asked import Takes, floats
from corsage.networks.batches import Examples
from corsage.networks.proximal import Pull
from corsage.strategies.ditto import DittoKeys


class DittoClient(Client[DittoKeys]):
    """The users of Ditto (Li et al. 2021, Algorithm 1); v_k begins as the initial model."""

    takes = Takes(shared={"model": floats("P")})

    personal = True
    own_training = True

    def train(self, got: Got, data: Examples) -> Sent:
        """w_k <- E epochs from w^t, and v_k <- epochs on h_k(v; w^t), on the same batches."""
        w, v = got.shared["model"], self.models(got).whole
        w_k = self.sgd(w, data)
        v_k = self.personal_sgd(v, w, data, self.keys.ditto_epochs)
        return Sent(mean={"model": w_k}, keep={"personal": v_k})

    def models(self, got: Got) -> Models:
        """Each user's own v_k."""
        return Models(self.remembered("personal", self.network.initial))

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """A new user solves its h_k(v; w^T), from w^T; others from their v_k."""
        w = got.shared["model"]
        return Models(self.personal_sgd(self.remembered("personal", w), w, data, epochs))

    def personal_sgd(self, v: Floats32, w: Floats32, data: Examples, epochs: int) -> Floats32:
        """v_k after some epochs of SGD on F_k(v) + lambda/2 |v - w|^2."""
        return self.sgd(v, data, epochs=epochs, pull=Pull(self.keys.ditto_lambda, w))
