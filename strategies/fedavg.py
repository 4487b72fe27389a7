"""FedAvg: one model for all, optionally fine-tuned by each user at the end.

McMahan, Moore, Ramage, Hampson, Agueera y Arcas: Communication-Efficient Learning of Deep Networks
from Decentralized Data, AISTATS 2017. With `fine-tune-epochs` also the row "FedAvg+FT" of FedRep's
Table 1: after the last round each user trains the head of the global model on its own data.
"""

from __future__ import annotations

from typing import Any

from corsage.core.arrays import Arrays
from corsage.networks.network import Network
from corsage.strategies.rounds.base import Strategy


class FedAvg(Strategy):
    """The server of FedAvg: it holds the whole model w."""

    name = "fedavg"

    def initial(self, network: Network) -> Arrays:
        """w_0."""
        return {"model": network.initial}

    def extra_evaluations(self) -> dict[str, dict[str, Any]]:
        """The global model with a head of one's own."""
        if self.config.train.fine_tune_epochs:
            return {f"{self.name}+ft": {"fine-tune": True}}
        return {}
