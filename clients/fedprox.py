"""FedProx at the users: FedAvg's training on the loss plus mu/2 |w - w_t|^2."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from corsage.clients.fedavg import FedAvgClient
from corsage.networks.training import Pull
from corsage.strategies.fedprox import FedProxKeys


class FedProxClient(FedAvgClient):
    """The users of FedProx (Li et al. 2020, Algorithm 2)."""

    def pull(self, model: NDArray[Any]) -> Pull:
        """The gradient of the proximal term: mu (w - w_t)."""
        assert isinstance(self.task.keys, FedProxKeys)
        return Pull(self.task.keys.fedprox_mu, model)
