"""FedProx at the users: FedAvg's training on the loss plus mu/2 |w - w_t|^2."""

from __future__ import annotations

from corsage.clients.fedavg import FedAvgClient
from corsage.core.arrays import Floats32
from corsage.networks.proximal import Pull
from corsage.strategies.fedprox import FedProxKeys


class FedProxClient(FedAvgClient[FedProxKeys]):
    """The users of FedProx (Li et al. 2020, Algorithm 2)."""

    own_training = True

    def pull(self, w: Floats32) -> Pull:
        """The gradient of the proximal term: mu (w - w_t)."""
        return Pull(self.keys.fedprox_mu, w)
