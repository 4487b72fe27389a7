"""MR-MTL at the users: one's own model, pulled to the mean."""

from __future__ import annotations

from corsage.clients.base import Got, Models, Sent
from corsage.clients.local import LocalClient
from corsage.core.arrays import Floats32
from corsage.core.messages.asked import Takes, floats
from corsage.networks.batches import Examples
from corsage.networks.proximal import Pull
from corsage.strategies.mr_mtl import MRMTLKeys


class MRMTLClient(LocalClient[MRMTLKeys]):
    """The users of MR-MTL (Liu et al. 2022); each is judged by its w_k."""

    takes = Takes(shared={"model": floats("P")})

    def train(self, got: Got, data: Examples) -> Sent:
        """w_k <- E epochs of SGD on F_k(w) + lambda/2 |w - w_mean|^2."""
        w_k = self.pulled(self.models(got).whole, got, data)
        return Sent(mean={"model": w_k}, keep={"model": w_k})

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """A new user begins at the mean; others where they stand."""
        return Models(self.pulled(self.remembered("model", got.shared["model"]), got, data, epochs))

    def pulled(self, w: Floats32, got: Got, data: Examples, epochs: int | None = None) -> Floats32:
        """SGD with the pull."""
        pull = Pull(self.keys.mr_mtl_lambda, got.shared["model"])
        return self.sgd(w, data, epochs=epochs, pull=pull)
