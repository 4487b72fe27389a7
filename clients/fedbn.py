"""FedBN at the users: FedAvg's training with normalisation of one's own."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from corsage.clients.base import Got, Models, Sent
from corsage.clients.fedavg import FedAvgClient
from corsage.core.arrays import Bools, Floats32
from corsage.core.keys import NoKeys
from corsage.networks import batch_norm
from corsage.networks.batches import Examples


class FedBNClient(FedAvgClient[NoKeys]):
    """The users of FedBN (Li et al. 2021, Algorithm 1)."""

    personal = True

    @cached_property
    def normalising(self) -> Bools:
        """Mark the numbers of layers that normalise by the batch."""
        layers = batch_norm.layers(self.network.module)
        found = np.zeros(self.network.whole.stop, bool)
        for block in self.network.blocks:
            found[block.where] = block.name.rpartition(".")[0] in layers
        return found

    def train(self, got: Got, data: Examples) -> Sent:
        """w_k <- E epochs of SGD; of its normalisation the server gets what it had."""
        w, own = got.shared["model"], self.normalising
        w_k = self.sgd(self.own_models(w), data)
        return Sent(mean={"model": np.where(own, w, w_k)}, keep={"normalisation": w_k[:, own]})

    def models(self, got: Got) -> Models:
        """The global model under each user's own normalisation."""
        return Models(self.own_models(got.shared["model"]))

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """A new user trains all of it."""
        return self.tuned(got, data, epochs, "all")

    def tuned(self, got: Got, data: Examples, epochs: int, part: str) -> Models:
        """Each user's model, trained on."""
        own = self.own_models(got.shared["model"])
        return Models(self.sgd(own, data, epochs=epochs, purpose="fine-tune"))

    def own_models(self, w: Floats32) -> Floats32:
        """w (P,) where nothing normalises; else one row a user."""
        own = self.normalising
        if not own.any():
            return w
        rows = np.repeat(w[None], len(self.users), axis=0)
        rows[:, own] = self.remembered("normalisation", w[own])
        return rows
