"""FedPer: base layers that are averaged, personalisation layers that stay with each user.

Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers, 2019,
Algorithm 1. In round k the server sends the base W_B^(k); client j takes e epochs of SGD on
(W_B, W_Pj) **jointly**, keeps W_Pj and returns W_B,j; the server averages
W_B^(k+1) = sum_j gamma_j W_B,j, where gamma_j = n_j / sum n (`weighting=examples`) or uniform.

The base is the body, the personalisation layers are the head. FedRep trains the same two one after
the other instead, the head for more epochs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corsage.core.keys import NoKeys
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.state import BodyState

if TYPE_CHECKING:
    from corsage.networks.network import Network


class FedPer(Strategy[NoKeys, BodyState]):
    """The server of FedPer: it holds the base layers W_B."""

    name = "fedper"
    tuned = ("own",)

    def initial(self, network: Network) -> BodyState:
        """The first base layers, W_B^(0)."""
        return BodyState(network.initial[network.body])
