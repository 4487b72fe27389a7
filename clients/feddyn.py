"""FedDyn at the users: SGD on the corrected loss, and the new correction from where it led."""

from __future__ import annotations

import numpy as np

from corsage.clients.base import Got, Sent
from corsage.clients.fedavg import FedAvgClient
from corsage.networks.batches import Examples
from corsage.networks.proximal import Pull
from corsage.strategies.feddyn import FedDynKeys


class FedDynClient(FedAvgClient[FedDynKeys]):
    """The users of FedDyn (Acar et al. 2021, Algorithm 1); g_k begins at 0."""

    personal = True
    own_training = False

    def train(self, got: Got, data: Examples) -> Sent:
        """theta_k <- SGD on (1) from theta, and g_k <- g_k - alpha (theta_k - theta)."""
        theta, alpha = got.shared["model"], np.float32(self.keys.feddyn_alpha)
        g_k = self.remembered("gradient", np.zeros_like(theta))
        theta_k = self.sgd(theta, data, pull=Pull(float(alpha), theta, shift=-g_k))
        return Sent(mean={"model": theta_k}, keep={"gradient": g_k - alpha * (theta_k - theta)})
