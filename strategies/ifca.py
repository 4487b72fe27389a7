"""IFCA: K models, each user trains the one that fits its data best.

Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning, NeurIPS
2020, Algorithm 1. In round t the server sends theta_1, ..., theta_K to the users M_t. User i picks
j = argmin_j F_i(theta_j) on its training data, s_ij = 1, and trains that model. The server takes

    option I,  gradient averaging:  theta_j <- theta_j - gamma/m sum_i s_ij g_i,  m = |M_t|
    option II, model averaging:     theta_j <- sum_i s_ij theta_i / sum_i s_ij.

g_i is the gradient on all of user i's training data; it comes as the model one step (gamma = lr)
away from theta_j, so both options send the same. A tie goes to the lowest j; a model that nobody
picked stays as it is. The models begin at the initial models of different seeds, the first at the
run's own, so K = 1 is FedAvg. The users pick anew in every round and for every evaluation, and
say which model they picked: the state's `clusters`. It matters where the models begin: the
paper's guarantee is for starts near the clusters' optima, and from some seeds all users pick one
model for good; another seed is another start.

With `robust` the rule takes the place of the mean over the users that picked a model; under option
I the step is |those users|/m times the way to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from flwr.app import ArrayRecord

from corsage.core.arrays import Arrays, Floats32
from corsage.core.configuration.key_groups import TrainKeys
from corsage.core.counts import Number
from corsage.core.errors import ModelError
from corsage.core.keys import Keys, key
from corsage.core.messages.replies import Replies
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.means.user_rows import cluster_sums, user_weights
from corsage.strategies.rounds.several_models import named_models, starts

if TYPE_CHECKING:
    from corsage.networks.network import Network


@dataclass(frozen=True)
class IFCAKeys(Keys):
    """Keys of IFCA."""

    title = "IFCA"
    example: ClassVar = {
        "dataset": "ellipses",
        "model": "linear",
        "lr": "0.1",
        "ifca-clusters": "3",
    }

    ifca_clusters: int = key(
        2, "cluster models (K); all of them are sent to each user", tuned=(2, 5), low=1
    )
    ifca_averaging: str = key(
        "models",
        "models: local-epochs of SGD at the users, the mean of their models (option II); "
        "gradients: one step of size lr along the mean of their full gradients (option I)",
        choices=("models", "gradients"),
    )


@dataclass
class IFCAState:
    """theta_1, ..., theta_K (K, P), and the number of the model that each user picked last."""

    models: Floats32
    clusters: dict[str, int] = field(default_factory=dict)


class IFCA(Strategy[IFCAKeys, IFCAState]):
    """The server of IFCA: it holds theta_1, ..., theta_K."""

    name = "ifca"
    by_user = ("model",)

    @classmethod
    def epochs(cls, train: TrainKeys, keys: IFCAKeys) -> float | None:
        """Option I is one step on all data, whatever the keys of training."""
        return train.local_epochs if keys.ifca_averaging == "models" else None

    def initial(self, network: Network) -> IFCAState:
        """theta_j^(0), from different seeds."""
        return IFCAState(starts(self, network, self.keys.ifca_clusters))

    def template(self) -> Arrays:
        """A user sends back one model."""
        return {"model": self.state.models[0]}

    def numbers(self, kind: str) -> tuple[Number, ...]:
        """The number of the model that a user picked."""
        return (Number("cluster", low=0.0, high=self.keys.ifca_clusters - 1.0, whole=True),)

    def merge(self, replies: Replies) -> IFCAState:
        """Option I or II, for each model over the users that picked it."""
        labels = self._picked(replies)
        models, trained = self.state.models, replies.rows["model"]
        clusters = {**self.state.clusters, **dict(zip(replies.users, labels, strict=True))}
        share = self.config.federation.max_share
        weights = user_weights(replies, self.config.train.weighting, share)
        means, of_models = models, self.keys.ifca_averaging == "models"
        if of_models or self.config.robust.on:
            means = self.averaging.of_clusters("model", trained, labels, weights, models)
        if not of_models:
            sums, total = cluster_sums(trained, labels, weights, len(models))
            if self.config.robust.on:
                sums = total[:, None] * means.astype(np.float64)
            steps = (sums - total[:, None] * models) / weights.sum()
            means = (models + steps).astype(np.float32)
        if self.server_step:
            means = self.server_step.of_clusters(models, means, labels)
        return IFCAState(means, clusters)

    def judged(self, replies: Replies) -> None:
        """Note which model each user picked."""
        picked = self._picked(replies)
        self.state.clusters |= dict(zip(replies.users, picked, strict=True))

    def _picked(self, replies: Replies) -> list[int]:
        return [int(j) for j in replies.metrics.pop("cluster", [])]

    def user_clusters(self, row: str) -> dict[str, str]:
        """The model that each user picked last, by its number."""
        return {user: str(j) for user, j in self.state.clusters.items()}

    def accept(self, named: Arrays) -> IFCAState:
        """Initial models must differ, so all K are given or none."""
        raise ModelError("ifca: initial_arrays must be one array `models`, (clusters, P).")

    def named_arrays(self) -> ArrayRecord:
        """Each cluster's parameters by name."""
        return named_models(self.job.network, self.state.models)
