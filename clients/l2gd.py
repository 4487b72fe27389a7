"""L2GD at the users: come closer to the mean, learn, report the change.

Hanzely and Richtarik 2020, Algorithm 1, with the coins of a round run together.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from corsage.clients.base import Evaluation, Fit
from corsage.clients.local import LocalClient
from corsage.networks.parts import train_models
from corsage.networks.training import Examples, Order, Pull, evaluate_models
from corsage.strategies.l2gd import L2GDKeys, aggregate, contraction


class L2GDClient(LocalClient):
    """The users of L2GD; each evaluates the model that it keeps."""

    returns = ("change",)

    def fit(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """x_i <- mean + (1 - c)^r (x_i - mean), then k local steps."""
        assert isinstance(self.task.keys, L2GDKeys)
        (mean,) = parameters
        data = self.train_data()
        before = self.remembered("model", self.network.initial)
        c = contraction(self.settings, self.task.keys)
        models = aggregate(before, mean, c, int(config["aggregation-steps"]))
        orders = self._steps(data, int(config["local-steps"]))
        models = train_models(self.network, models, data, orders, self.settings)
        self.keep("model", models)
        return [models - before], int(data.sizes.sum()), {"num-examples": data.sizes}

    def adapt(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """A new user minimises its part of (2), f + lambda/2 |x - mean|^2, from the mean."""
        assert isinstance(self.task.keys, L2GDKeys)
        (mean,) = parameters
        data = self.train_data()
        orders = self.orders("model", data, int(config["adapt-epochs"]))
        pull = Pull(self.task.keys.l2gd_lambda, mean)
        models = train_models(self.network, mean, data, orders, self.settings, pull)
        return self.report(evaluate_models(self.network, models, self.test_data()))

    def _steps(self, data: Examples, k: int) -> list[Order]:
        """The first k batches of each user, over as many epochs as that takes."""
        size = self.settings.batch_size
        epochs = max((-(-k // -(-int(n) // size)) for n in data.sizes), default=0)
        return [order[:k] for order in self.orders("model", data, epochs)]
