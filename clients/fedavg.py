"""FedAvg at the users: train the global model, send it back; fine-tune its head at the end."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from corsage.clients.base import Client, Evaluation, Fit
from corsage.networks.parts import train_head_group, train_models
from corsage.networks.training import Pull, evaluate_models


class FedAvgClient(Client):
    """The users of FedAvg."""

    def fit(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """w_k <- E epochs of SGD from w_t."""
        (model,) = parameters
        data = self.train_data()
        orders = self.orders("model", data, self.settings.local_epochs)
        pull = self.pull(model)
        models = train_models(self.network, model, data, orders, self.settings, pull)
        return [models], int(data.sizes.sum()), {"num-examples": data.sizes}

    def pull(self, model: NDArray[Any]) -> Pull | None:
        """What is added to the gradient of the loss: in FedAvg nothing."""
        return None

    def evaluate(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """The global model, or with `fine-tune` its body under a head of each user's own."""
        (model,) = parameters
        if config.get("fine-tune"):
            return self._fine_tuned(model, self.settings.fine_tune_epochs)
        return self.report(evaluate_models(self.network, model, self.test_data()))

    def adapt(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """A new user trains the head of the global model."""
        return self._fine_tuned(parameters[0], int(config["adapt-epochs"]))

    def _fine_tuned(self, model: NDArray[Any], epochs: int) -> Evaluation:
        """The global body under heads that the users trained from the global one."""
        body, head = model[self.network.body], model[self.network.head]
        data = self.train_data()
        orders = self.orders("fine-tune", data, epochs)
        starts = np.broadcast_to(head, (len(self.users), len(head)))
        heads = train_head_group(self.network, body, starts, data, orders, self.settings)
        return self.scored_heads(body, heads)
