"""Local training at the users: a model of one's own, and nobody else's data."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from corsage.clients.base import Client, Evaluation, Fit
from corsage.networks.parts import train_models
from corsage.networks.training import evaluate_models


class LocalClient(Client):
    """Users that learn alone."""

    personal = True

    def fit(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """E more epochs of SGD on one's own model."""
        data = self.train_data()
        models = self.remembered("model", self.network.initial)
        orders = self.orders("model", data, self.settings.local_epochs)
        self.keep("model", train_models(self.network, models, data, orders, self.settings))
        return [], int(data.sizes.sum()), {"num-examples": data.sizes}

    def evaluate(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """Each user's own model."""
        models = self.remembered("model", self.network.initial)
        return self.report(evaluate_models(self.network, models, self.test_data()))
