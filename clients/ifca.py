"""IFCA at the users: pick the model of least loss on one's training data, and train it.

Ghosh et al. 2020, Algorithm 1, lines of the worker machines.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from corsage.clients.base import Client, Evaluation, Fit
from corsage.core.arrays import Floats32, Ints
from corsage.networks.parts import train_models
from corsage.networks.training import Examples, Order, Scores, evaluate_models
from corsage.strategies.ifca import IFCAKeys


class IFCAClient(Client):
    """The users of IFCA."""

    averaged = False
    returns = ("model",)

    def fit(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """theta_i <- LocalUpdate(theta_j), j the cluster that user i picks."""
        (models,) = parameters
        data = self.train_data()
        picked = self._pick(models, data)
        trained = train_models(self.network, models[picked], data, self._steps(data), self.settings)
        metrics = {"num-examples": data.sizes, "cluster": picked}
        return [trained], int(data.sizes.sum()), metrics

    def evaluate(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """The model that each user picks now: by its training data, not by its test data."""
        (models,) = parameters
        picked, test = self._pick(models, self.train_data()), self.test_data()
        scores = [evaluate_models(self.network, model, test) for model in models]
        users = np.arange(len(picked))
        counted, loss = (
            np.stack([getattr(s, name) for s in scores])[picked, users]
            for name in ("counted", "loss")
        )
        return self._report(Scores(counted, loss, test.sizes), picked)

    def adapt(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """A new user picks a model, and trains it for itself."""
        (models,) = parameters
        data = self.train_data()
        picked = self._pick(models, data)
        orders = self.orders("model", data, int(config["adapt-epochs"]))
        own = train_models(self.network, models[picked], data, orders, self.settings)
        return self._report(evaluate_models(self.network, own, self.test_data()), picked)

    def _pick(self, models: Floats32, data: Examples) -> Ints:
        """argmin_j F_i(theta_j) for each user; of equal ones the first."""
        losses = [evaluate_models(self.network, model, data).loss for model in models]
        return np.asarray(np.stack(losses).argmin(axis=0), np.int64)

    def _steps(self, data: Examples) -> list[Order]:
        """Batches of SGD, or one step on all data of the user."""
        assert isinstance(self.task.keys, IFCAKeys)
        if self.task.keys.ifca_averaging == "models":
            return self.orders("model", data, self.settings.local_epochs)
        return [[np.arange(n)] for n in data.sizes]

    def _report(self, scores: Scores, picked: Ints) -> Evaluation:
        loss, examples, metrics = self.report(scores)
        return loss, examples, {**metrics, "cluster": picked}
