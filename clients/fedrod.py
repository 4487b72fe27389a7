"""FedRoD at the users: the generic model with the balanced softmax, the personal head without."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor, bincount
from torch.nn.functional import cross_entropy

from corsage.clients.base import Client, Got, Models, Sent
from corsage.core.arrays import Floats32
from corsage.core.messages.asked import Takes, floats
from corsage.networks.batches import Examples, Loss
from corsage.strategies.fedrod import FedRoDKeys


class FedRoDClient(Client[FedRoDKeys]):
    """The users of FedRoD; phi_m begins at 0."""

    takes = Takes(shared={"model": floats("P")})
    personal = True

    def loss(self, got: Got, user: str, labels: Tensor) -> Loss:
        """Balanced softmax: cross-entropy of g_c + log n_c, n_c the user's samples of class c."""
        log_n = bincount(labels, minlength=self.task.num_classes).log()
        return lambda features, outputs, y: cross_entropy(outputs + log_n, y)

    def train(self, got: Got, data: Examples) -> Sent:
        """phi_m <- epochs at (theta^t, psi^t + phi_m); (theta_m, psi_m) <- E epochs of SGD."""
        model = got.shared["model"]
        body, psi = model[self.network.body], model[self.network.head]
        plain = replace(data, losses=None)  # the model's own loss, without the balance
        heads = self.sgd_heads(body, psi + self.phi(), plain, self.keys.fedrod_epochs)
        return Sent(mean={"model": self.sgd(model, data)}, keep={"phi": heads - psi})

    def models(self, got: Got) -> Models:
        """theta under psi + phi_m."""
        model = got.shared["model"]
        return Models(model[self.network.body], model[self.network.head] + self.phi())

    def phi(self) -> Floats32:
        """phi_m, one row a user."""
        return self.remembered("phi", np.zeros_like(self.network.initial[self.network.head]))
