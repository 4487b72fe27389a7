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
say which model they picked: state.scalars["clusters"]. It matters where the models begin: the
paper's guarantee is for starts near the clusters' optima, and from some seeds all users pick one
model for good; another seed is another start.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, Message

from corsage.core.arrays import Arrays
from corsage.core.errors import ModelError
from corsage.core.keys import Keys, key
from corsage.core.replies import Outcome
from corsage.core.seeding import torch_seed
from corsage.core.wire import decode
from corsage.networks.build import build_network
from corsage.networks.network import Network
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.cluster_means import cluster_means, cluster_sums, named_models
from corsage.strategies.rounds.rows import user_weights


@dataclass(frozen=True)
class IFCAKeys(Keys):
    """Keys of IFCA."""

    title = "IFCA"

    ifca_clusters: int = key(2, "cluster models (K); all of them are sent to each user", low=1)
    ifca_averaging: str = key(
        "models",
        "models: local-epochs of SGD at the users, the mean of their models (option II); "
        "gradients: one step of size lr along the mean of their full gradients (option I)",
        choices=("models", "gradients"),
    )


class IFCA(Strategy):
    """The server of IFCA: it holds theta_1, ..., theta_K."""

    name = "ifca"

    def initial(self, network: Network) -> Arrays:
        """theta_j^(0), from different seeds."""
        assert isinstance(self.keys, IFCAKeys)
        others = [self._start(j) for j in range(1, self.keys.ifca_clusters)]
        return {"models": np.stack([network.initial, *others])}

    def _start(self, j: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        """The initial model of another seed, which is the run's seed and the cluster's number."""
        roster, seed = self.roster, torch_seed(self.config.run.seed, "ifca", j)
        return build_network(self.config.model, roster.shape, roster.num_classes, seed).initial

    def template(self) -> Arrays:
        """A user sends back one model."""
        return {"model": self.state.arrays["models"][0]}

    def merge(self, outcome: Outcome) -> Arrays:
        """Option I or II, for each model over the users that picked it."""
        assert isinstance(self.keys, IFCAKeys)
        models, trained = self.state.arrays["models"], outcome.rows["model"]
        labels = [self.state.scalars["clusters"][user] for user in outcome.users]
        weights = user_weights(outcome, self.config.train.weighting)
        if self.keys.ifca_averaging == "models":
            return {"models": cluster_means(trained, labels, weights, models)}
        sums, total = cluster_sums(trained, labels, weights, len(models))
        steps = (sums - total[:, None] * models) / weights.sum()
        return {"models": (models + steps).astype(np.float32)}

    def _collect(
        self, replies: list[Message], template: Arrays, needed: tuple[str, ...]
    ) -> Outcome:
        """Note which model each user says it picked."""
        outcome = super()._collect(replies, template, (*needed, "cluster"))
        picked = [int(j) for j in outcome.metrics.pop("cluster", [])]
        known = self.state.scalars.get("clusters", {})
        new = dict(zip(outcome.users, picked, strict=True))
        self.state.scalars["clusters"] = {**known, **new}
        return outcome

    def accept(self, named: ArrayRecord) -> Arrays:
        """Initial models: theirs must differ, so all K are given or none."""
        arrays = decode(named)
        if set(arrays) != {"models"}:
            raise ModelError("ifca: initial_arrays must be one array `models`, (clusters, P).")
        return arrays

    def named_arrays(self) -> ArrayRecord:
        """Each cluster's parameters by name."""
        return named_models(self.network, self.state.arrays["models"])
