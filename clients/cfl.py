"""CFL at the users: train the model of one's cluster, send it back.

Sattler et al. 2021, Algorithm 3, lines of the clients. A user neither knows nor needs to know
its cluster: the server sends it one model, and takes the update as the difference.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corsage.clients.base import Client, Evaluation, Fit
from corsage.core.arrays import Floats32
from corsage.networks.parts import train_models
from corsage.networks.training import evaluate_models


class CFLClient(Client):
    """The users of CFL."""

    averaged = False
    returns = ("model",)

    def fit(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """theta_i <- SGD_n(theta_c(i), D_i)."""
        trained, sizes = self._train(self.rows["model"])
        return [trained], int(sizes.sum()), {"num-examples": sizes}

    def evaluate(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """The model of each user's cluster."""
        return self.report(evaluate_models(self.network, self.rows["model"], self.test_data()))

    def adapt(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """A new user finds its cluster, and trains the cluster's model for itself."""
        self.settings = replace(self.settings, local_epochs=int(config["adapt-epochs"]))
        arrays = dict(zip(self.names, parameters, strict=True))
        labels = np.zeros(len(self.users), np.int64)
        for s, (c, new) in enumerate(arrays.get("cuts", np.empty((0, 2), np.int64))):
            model, sides = arrays["cut-models"][s], arrays["cut-directions"][s]
            alike = (self._train(model)[0] - model) @ sides.T
            labels[(labels == c) & (alike[:, 1] > alike[:, 0])] = new
        own, _ = self._train(arrays["models"][labels])
        return self.report(evaluate_models(self.network, own, self.test_data()))

    def _train(self, starts: Floats32) -> tuple[Floats32, NDArray[np.int64]]:
        """Local epochs of SGD from these models, and the numbers of examples."""
        data = self.train_data()
        orders = self.orders("model", data, self.settings.local_epochs)
        return train_models(self.network, starts, data, orders, self.settings), data.sizes
