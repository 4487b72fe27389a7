"""FedALA: users begin a round between their own head and the global one, number by number.

Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedALA: Adaptive Local Aggregation for Personalized Federated
Learning, AAAI 2023, Algorithm 1. User i has a model Theta_i of its own, and for each number of its
upper layers a weight W_i in [0, 1]. In a round it begins, from the global model Theta, with

    Theta'_i = Theta_i + (Theta - Theta_i) * W_i,                                            (4)
    W_i <- clip(W_i - eta dL(Theta'_i) / dW_i)                                               (5)

(5) over a share s of its samples, drawn anew; of the lower layers W_i is 1. Then it has its epochs
from Theta'_i, and sends Theta_i, of which the server takes the mean. W_i begins at 1; a user learns
it from its second round on, first for `fedala-start-epochs` (the paper: until it converges), later
for one epoch. A user is judged by Theta'_i, as its next round would begin.

The upper layers are the head. With eta = 0 this is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass

from corsage.core.configuration.key_groups import TrainKeys
from corsage.core.keys import EPOCH_LIMIT, Keys, key
from corsage.strategies.rounds.base import OneModel
from corsage.strategies.rounds.state import ModelState


@dataclass(frozen=True)
class FedALAKeys(Keys):
    """Keys of FedALA."""

    title = "FedALA"

    fedala_eta: float = key(
        1.0, "step size of the weights (eta); 0: FedAvg", tuned=(0.1, 10.0), low=0.0
    )
    fedala_share: float = key(
        0.8,
        "share of a user's samples on which it learns its weights (s)",
        low=0.01,
        high=1.0,
    )
    fedala_start_epochs: int = key(
        11, "epochs of the weights when they are learnt first", low=0, limit=EPOCH_LIMIT
    )


class FedALA(OneModel[FedALAKeys, ModelState]):
    """The server of FedALA: it holds Theta, and knows neither Theta_i nor W_i."""

    name = "fedala"

    @classmethod
    def epochs(cls, train: TrainKeys, keys: FedALAKeys) -> float:
        """The model, and an epoch of the weights on a share of the samples."""
        return train.local_epochs + keys.fedala_share
