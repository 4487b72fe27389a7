"""IFCA at the users: pick the model of least loss on one's training data, and train it.

Ghosh et al. 2020, Algorithm 1, lines of the worker machines.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from corsage.clients.base import Client, Got, Models, Sent
from corsage.core.arrays import Floats32, Ints
from corsage.core.messages.asked import Takes, floats
from corsage.networks.batches import Examples, Order
from corsage.networks.user_scores import score
from corsage.strategies.ifca import IFCAKeys


class IFCAClient(Client[IFCAKeys]):
    """The users of IFCA."""

    takes = Takes(shared={"models": floats("K", "P")})

    def train(self, got: Got, data: Examples) -> Sent:
        """theta_i <- LocalUpdate(theta_j), j the cluster that user i picks."""
        theta = got.shared["models"]
        j = self.pick(theta, data)
        trained = self.sgd(theta[j], data, orders=self._steps(data))
        return Sent(rows={"model": trained}, metrics={"cluster": j})

    def models(self, got: Got) -> Models:
        """The model that each user picks now: by its training data, not by its test data."""
        theta = got.shared["models"]
        return self._picked(theta, self.pick(theta, self.train_data(got)))

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """A new user picks a model, and trains it for itself."""
        theta = got.shared["models"]
        j = self.pick(theta, data)
        own = self.sgd(theta[j], data, epochs=epochs)
        return replace(self._picked(theta, j), whole=own, picked=None)

    def pick(self, theta: Floats32, data: Examples) -> Ints:
        """argmin_j F_i(theta_j) for each user; of equal ones the first."""
        each = [Models(model).outputs(self.network, data, alone=False) for model in theta]
        losses = [score(self.network.criterion, outputs, data).loss for outputs in each]
        return np.asarray(np.stack(losses).argmin(axis=0), np.int64)

    def _picked(self, theta: Floats32, j: Ints) -> Models:
        return Models(theta, picked=j, metrics={"cluster": j})

    def _steps(self, data: Examples) -> list[Order]:
        """Batches of SGD, or one step on all data of the user."""
        if self.keys.ifca_averaging == "models":
            return self.orders("model", data)
        return [[np.arange(n)] for n in data.sizes]
