"""FedPer: base layers that are averaged, personalisation layers that stay with each user.

Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers, 2019,
Algorithm 1. In round k the server sends the base W_B^(k); client j takes e epochs of SGD on
(W_B, W_Pj) **jointly**, keeps W_Pj and returns W_B,j; the server averages
W_B^(k+1) = sum_j gamma_j W_B,j, where gamma_j = n_j / sum n (`weighting=examples`) or uniform.

The base is the body, the personalisation layers are the head. FedRep trains the same two one after
the other instead, the head for more epochs.
"""

from __future__ import annotations

from corsage.core.arrays import Arrays
from corsage.networks.network import Network
from corsage.strategies.rounds.base import Strategy


class FedPer(Strategy):
    """The server of FedPer: it holds the base layers W_B."""

    name = "fedper"

    def initial(self, network: Network) -> Arrays:
        """W_B^(0)."""
        return {"body": network.initial[network.body]}
