"""Ditto: FedAvg's global model, and for each user a personal model that is pulled towards it.

Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization, ICML
2021, Algorithm 1. The global objective is FedAvg's. User k also has v_k for

    min_v h_k(v; w*) = F_k(v) + lambda/2 |v - w*|^2                                    (Ditto)

and when it is drawn takes steps v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w^t)). What is
evaluated is v_k. lambda = 0 is local training; the larger lambda, the nearer is v_k to FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass

from corsage.core.configuration.key_groups import TrainKeys
from corsage.core.keys import EPOCH_LIMIT, Keys, key
from corsage.strategies.rounds.base import OneModel
from corsage.strategies.rounds.state import ModelState


@dataclass(frozen=True)
class DittoKeys(Keys):
    """Keys of Ditto."""

    title = "Ditto"

    ditto_lambda: float = key(
        1.0,
        "strength lambda of the personal model's pull to the global one; 0: local",
        tuned=(0.01, 10.0),
        low=0.0,
    )
    ditto_epochs: int = key(
        1,
        "epochs a round of the personal model, besides local-epochs of the global one",
        low=0,
        limit=EPOCH_LIMIT,
    )


class Ditto(OneModel[DittoKeys, ModelState]):
    """The server of Ditto: it holds the global model w, and knows no v_k."""

    name = "ditto"

    @classmethod
    def epochs(cls, train: TrainKeys, keys: DittoKeys) -> float:
        """Both models are trained."""
        return train.local_epochs + keys.ditto_epochs
