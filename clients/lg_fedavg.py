"""LG-FedAvg at the users: body and head learn together, the head goes back, the body stays.

Liang et al. 2020, Algorithm 1, device side. A user that was never drawn has its initial body, or
that of the warm-up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from corsage.clients.base import Evaluation, Fit
from corsage.clients.fedper import FedPerClient
from corsage.networks.parts import train_bodies
from corsage.networks.training import evaluate_models
from corsage.strategies.lg_fedavg import LGFedAvgKeys


class LGFedAvgClient(FedPerClient):
    """The users of LG-FedAvg: FedPer's, with the parts exchanged."""

    shared, own = "head", "body"

    def fit(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """(l_m, g_m) <- E epochs of SGD on both at once; in the warm-up both go back."""
        assert isinstance(self.task.keys, LGFedAvgKeys)
        (heads,), n, metrics = super().fit(parameters, config)
        if self.task.round > self.task.keys.lg_fedavg_warmup_rounds:
            self.returns = ("head",)
            return [heads], n, metrics
        self.returns = ("body", "head")
        return [self.kept.pop("body"), heads], n, metrics

    def evaluate(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """Each user's own body under the global head."""
        models = self.models(dict(zip(self.names, parameters, strict=True)))
        return self.report(evaluate_models(self.network, models, self.test_data()))

    def adapt(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """A new user learns its local representation under the global head, which stands."""
        models = self.models(dict(zip(self.names, parameters, strict=True)))
        data, body, head = self.train_data(), self.network.body, self.network.head
        orders = self.orders("body", data, int(config["adapt-epochs"]))
        start, heads = models[0, body], models[:, head]
        bodies = train_bodies(self.network, start, heads, data, orders, self.settings)
        models = np.concatenate([bodies, heads], axis=1)
        return self.report(evaluate_models(self.network, models, self.test_data()))
