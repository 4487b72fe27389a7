"""Ditto at the users: the global model as in FedAvg, then the personal one beside it."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from corsage.clients.base import Client, Evaluation, Fit
from corsage.networks.parts import train_models
from corsage.networks.training import Examples, Pull, evaluate_models
from corsage.strategies.ditto import DittoKeys


class DittoClient(Client):
    """The users of Ditto (Li et al. 2021, Algorithm 1); v_k begins as the initial model."""

    personal = True

    def fit(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """w_k <- E epochs from w^t, and v_k <- epochs on h_k(v; w^t), on the same batches."""
        assert isinstance(self.task.keys, DittoKeys)
        (model,) = parameters
        data = self.train_data()
        orders = self.orders("model", data, self.settings.local_epochs)
        models = train_models(self.network, model, data, orders, self.settings)
        own = self.remembered("personal", self.network.initial)
        self.keep("personal", self._personal(own, model, data, self.task.keys.ditto_epochs))
        return [models], int(data.sizes.sum()), {"num-examples": data.sizes}

    def evaluate(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """Each user's own v_k."""
        own = self.remembered("personal", self.network.initial)
        return self.report(evaluate_models(self.network, own, self.test_data()))

    def adapt(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """A new user solves its h_k(v; w^T), from w^T."""
        (model,) = parameters
        own = self._personal(model, model, self.train_data(), int(config["adapt-epochs"]))
        return self.report(evaluate_models(self.network, own, self.test_data()))

    def _personal(
        self, starts: NDArray[Any], model: NDArray[Any], data: Examples, epochs: int
    ) -> NDArray[Any]:
        """v_k after some epochs of SGD on F_k(v) + lambda/2 |v - w|^2."""
        assert isinstance(self.task.keys, DittoKeys)
        pull = Pull(self.task.keys.ditto_lambda, model)
        orders = self.orders("model", data, epochs)
        return train_models(self.network, starts, data, orders, self.settings, pull)
