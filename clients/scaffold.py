"""SCAFFOLD at the users: SGD shifted by c - c_i, and the new c_i from where it led."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from corsage.clients.base import Fit
from corsage.clients.fedavg import FedAvgClient
from corsage.networks.parts import train_models
from corsage.networks.training import Pull


class ScaffoldClient(FedAvgClient):
    """The users of SCAFFOLD (Karimireddy et al. 2020, Algorithm 1, option II)."""

    personal = True

    def fit(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """y_i by K steps y_i <- y_i - eta_l (g_i(y_i) - c_i + c) from x, then c_i+."""
        x, c = parameters
        keys = self.settings
        data = self.train_data()
        own = self.remembered("variate", np.zeros_like(c))
        orders = self.orders("model", data, keys.local_epochs)
        shifted = Pull(0.0, x, shift=c - own)
        y = train_models(self.network, x, data, orders, keys, shifted)
        weights = np.array([gradients_taken(len(order), keys.momentum) for order in orders])
        scale = (keys.lr * weights)[:, None]
        change = np.zeros_like(own)
        np.divide(x - y, scale, out=change, where=scale > 0, casting="same_kind")
        change -= np.where(scale > 0, c, np.float32(0.0))
        self.keep("variate", own + change)
        return [y, change], int(data.sizes.sum()), {"num-examples": data.sizes}


def gradients_taken(steps: int, momentum: float) -> float:
    """How many gradients K steps add up to: K, or with momentum sum_k sum_{j < k} momentum^j."""
    return float(np.cumsum(momentum ** np.arange(steps)).sum())
