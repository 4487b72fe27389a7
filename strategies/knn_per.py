"""kNN-Per: FedAvg's model, and at each user a memory of its samples, whose nearest ones vote.

Marfoq, Neglia, Kameni, Vidal: Personalized Federated Learning through Local Memorization, ICML
2022. User m predicts lambda_m h_m(x) + (1 - lambda_m) h(x): h is the global model, trained by
FedAvg. h_m gives a class the weight of those of the k nearest training samples, by their features
under h, that have it: exp(-d), d the mean squared distance of features over sigma. At lambda = 0 it
is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from corsage.core.errors import ModelError
from corsage.core.keys import Keys, key
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.state import ModelState

if TYPE_CHECKING:
    from corsage.networks.network import Network

CHOSEN_LAMBDA = -1.0


@dataclass(frozen=True)
class KNNPerKeys(Keys):
    """Keys of kNN-Per."""

    title = "kNN-Per"

    knn_per_k: int = key(10, "neighbours that vote (k)", tuned=(3, 30), low=1)
    knn_per_lambda: float = key(
        CHOSEN_LAMBDA,
        "what their vote weighs against the global model (lambda_m); -1: each user chooses it of "
        "0, .1, ..., 1, by its training samples, each of which the others predict",
        low=CHOSEN_LAMBDA,
        high=1.0,
    )
    knn_per_sigma: float = key(
        1.0,
        "mean squared distance of features at which a neighbour weighs 1/e (sigma)",
        low=1e-12,
    )


class KNNPer(Strategy[KNNPerKeys, ModelState]):
    """The server of kNN-Per is FedAvg's."""

    name = "knn-per"

    def initial(self, network: Network) -> ModelState:
        """h^0; ModelError where there are no features, or no probabilities."""
        if network.criterion.name not in ("cross-entropy", "logistic"):
            raise ModelError(
                f"knn-per: neighbours vote on classes; loss={network.criterion.name} has no "
                "probabilities to weigh that against."
            )
        if not network.split_exact:
            raise ModelError(f"knn-per: distances are of features: {network.why}.")
        return ModelState(network.initial)
