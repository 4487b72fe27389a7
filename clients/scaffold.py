"""SCAFFOLD at the users: SGD shifted by c - c_i, and the new c_i from where it led."""

from __future__ import annotations

import numpy as np

from corsage.clients.base import Got, Sent
from corsage.clients.fedavg import FedAvgClient
from corsage.core.configuration.train_keys import TrainKeys
from corsage.core.messages.asked import Takes, floats
from corsage.core.messages.wire import ROWS_BY_USER
from corsage.networks.batches import Examples
from corsage.networks.proximal import Pull
from corsage.strategies.scaffold import ScaffoldKeys


class ScaffoldClient(FedAvgClient[ScaffoldKeys]):
    """The users of SCAFFOLD (Karimireddy et al. 2020, Algorithm 1, option II)."""

    takes = Takes(shared={"model": floats("P"), "variate": floats("P")})

    personal = True

    def train(self, got: Got, data: Examples) -> Sent:
        """y_i by K steps y_i <- y_i - eta_l (g_i(y_i) - c_i + c) from x, then c_i+."""
        x, c, keys = got.shared["model"], got.shared["variate"], self.settings
        c_i = self.remembered("variate", np.zeros_like(c))
        orders = self.orders("model", data)
        y = self.sgd(x, data, orders=orders, pull=Pull(0.0, x, shift=c - c_i))
        weights = np.array([gradients_taken(len(order), keys) for order in orders])
        scale = (keys.lr * weights)[:, None]
        change = np.zeros_like(c_i)
        np.divide(x - y, scale, out=change, where=scale > 0, casting="same_kind")
        change -= np.where(scale > 0, c, np.float32(0.0))
        whole = ROWS_BY_USER in got.options  # a robust rule compares variates
        told = c_i + change if whole else change
        return Sent(mean={"model": y, "variate": told}, keep={"variate": c_i + change})


def gradients_taken(steps: int, keys: TrainKeys) -> float:
    """The number of gradients in K steps: K, or with momentum mu sum_k sum_{j < k} mu^j.

    Nesterov's step is g + mu m, so that it is K and mu times that.
    """
    total = float(np.cumsum(keys.momentum ** np.arange(steps)).sum())
    return steps + keys.momentum * total if keys.nesterov else total
