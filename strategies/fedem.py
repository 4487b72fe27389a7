"""FedEM: K models that all users share, and at each user a mixture of them with its own weights.

Marfoq, Neglia, Bellet, Kameni, Vidal: Federated Multi-Task Learning under a Mixture of
Distributions, NeurIPS 2021, Algorithm 1. User t's data come from K distributions with weights
pi_tk. In a round it takes, with theta_1, ..., theta_K as they came,

    E:  q(z_i = k) proportional to pi_tk exp(-l(h_theta_k(x_i), y_i))     of each sample
    M:  pi_tk = mean_i q(z_i = k),  theta_tk <- SGD on mean_i q(z_i = k) l(h_theta(x_i), y_i)

and sends theta_t1, ..., theta_tK, of which the server keeps the means. A user predicts by the sum
of pi_tk h_theta_k: of probabilities of classes, of outputs where labels are numbers. Who comes
later takes E and M steps of its weights alone: it trains nothing. K = 1 is FedAvg.

The components begin at the initial models of different seeds, the first at the run's own. All of a
user's components see the same batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord

from corsage.core.arrays import Arrays, Floats32
from corsage.core.configuration.key_groups import TrainKeys
from corsage.core.configuration.train_keys import LOSS
from corsage.core.errors import ModelError
from corsage.core.keys import Keys, key
from corsage.core.messages.replies import Replies
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.several_models import named_models, starts

if TYPE_CHECKING:
    from corsage.networks.network import Network

MIXED_AS: Mapping[str, str] = {
    "cross-entropy": "probabilities",
    "logistic": "probabilities",
    "squared": "outputs",
}
"""What users mix, by the model's loss."""


@dataclass(frozen=True)
class FedEMKeys(Keys):
    """Keys of FedEM."""

    title = "FedEM"

    fedem_components: int = key(
        3,
        "models (K); all of them are sent to each user, and trained; 1: FedAvg",
        tuned=(2, 5),
        low=1,
    )


@dataclass
class FedEMState:
    """theta_1, ..., theta_K (K, P)."""

    models: Floats32


class FedEM(Strategy[FedEMKeys, FedEMState]):
    """The server of FedEM: it holds theta_1, ..., theta_K, and knows no pi_t."""

    name = "fedem"
    tuned = ("own",)

    @classmethod
    def epochs(cls, train: TrainKeys, keys: FedEMKeys) -> float:
        """Each model is trained on all of a user's data."""
        return train.local_epochs * keys.fedem_components

    def unused(self, name: str) -> str:
        """Only the model's own loss is a likelihood."""
        told = "responsibilities are of the model's own loss"
        return told if name.replace("-", "_") in LOSS else ""

    def initial(self, network: Network) -> FedEMState:
        """theta_k^0, from different seeds."""
        if self.job.loss not in MIXED_AS:
            raise ModelError(
                f"fedem: loss={self.job.loss} has neither probabilities to mix nor outputs whose "
                "mean is one; take loss=cross-entropy, or of numbers squared."
            )
        return FedEMState(starts(self, network, self.keys.fedem_components))

    def merge(self, replies: Replies) -> FedEMState:
        """The means of theta_tk, or the server's own step to them."""
        models, means = self.state.models, replies.mean["models"]
        if self.server_step:
            means = self.server_step.of_clusters(models, means, range(len(models)))
        return FedEMState(means)

    def accept(self, named: Arrays) -> FedEMState:
        """Initial models must differ, so all K are given or none."""
        raise ModelError("fedem: initial_arrays must be one array `models`, (components, P).")

    def named_arrays(self) -> ArrayRecord:
        """Each component's parameters by name."""
        return named_models(self.job.network, self.state.models, "component")
