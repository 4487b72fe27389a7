"""Local models first, clusters of them second, one refitted model a cluster last.

What convex clustering is to be compared with: every user finds its own minimiser of f_i, the server
groups these by k-means or average linkage, and each cluster's model is the minimiser of the sum of
its f_i (found by Newton's method over the users). Needs users with samples enough for a model of
their own; those that have no best one take a proximal step from 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ConfigRecord
from flwr.serverapp import Grid

from corsage.core.arrays import Arrays, Floats
from corsage.core.errors import ConfigError
from corsage.core.keys import Keys, key
from corsage.core.replies import Outcome
from corsage.core.seeding import generator
from corsage.networks.network import Network
from corsage.solvers.convex_clustering.reading import candidate, in_order, linked, refit
from corsage.strategies.convex_clustering.convex_clustering import check_convex
from corsage.strategies.convex_clustering.questions import Asking

WEAK = 1e-2
"""kappa of those without a best model, as a share of the curvature."""


@dataclass(frozen=True)
class LocalClustersKeys(Keys):
    """Keys of clusters of local models."""

    title = "Clusters of local models"

    local_clusters_by: str = key(
        "average", "average linkage, or kmeans", choices=("average", "kmeans")
    )
    local_clusters_number: int = key(
        0, "clusters; 0: where the dendrogram has its largest gap (average)", low=0
    )


class LocalClusters(Asking):
    """The server: one exchange for the local models, a few for the clusters'."""

    name = "local-clusters"

    def initial(self, network: Network) -> Arrays:
        """Nothing yet."""
        check_convex(self, network)
        keys = self.own_keys
        if keys.local_clusters_by == "kmeans" and not keys.local_clusters_number:
            raise ConfigError("local-clusters-by=kmeans: it needs local-clusters-number above 0.")
        return {"model": np.zeros(network.whole.stop, np.float64)}

    @property
    def own_keys(self) -> LocalClustersKeys:
        """The keys of this method."""
        assert isinstance(self.keys, LocalClustersKeys)
        return self.keys

    @property
    def models(self) -> Floats:
        """One model a user, the same for all of a cluster."""
        return np.asarray(self.state.arrays["x"])

    def open(self, grid: Grid) -> None:
        """All users take part."""
        self._grid = grid
        self.state.scalars.setdefault("users", self.users)

    def finished(self) -> bool:
        """One round is all."""
        return self.state.round > 0

    def _train(self, grid: Grid, number: int, config: ConfigRecord) -> Outcome:
        """Local models, their clusters, and the clusters' models."""
        arrays, scalars = self.state.arrays, self.state.scalars
        shape = len(scalars["users"]), len(arrays["model"])
        arrays["x"] = np.zeros(shape)
        outcome, local = self._local_models(shape)
        labels = self._labels(local)
        models = refit(self.losses, labels)
        means = np.stack([local[labels == k].mean(0) for k in range(len(models))])
        usable = np.isfinite(models.sum(1))
        arrays["x"] = np.where(usable[:, None], models, means)[labels]
        arrays["model"] = arrays["x"].mean(0)
        scalars["labels"], self.state.round = labels.tolist(), number
        self.state.drawn |= dict.fromkeys(outcome.users, 1)
        self._last, self._sent = outcome, None
        return outcome

    def _local_models(self, shape: tuple[int, int]) -> tuple[Outcome, Floats]:
        """argmin f_i; where there is none, near 0 and what f_i wants."""
        zeros, one = np.zeros(shape), {"x": np.zeros(shape[1])}
        outcome = self.ask("minimise", {"slope": zeros}, {}, one)
        local, found = np.asarray(outcome.rows["x"]), outcome.metrics["found"] > 0
        if not found.all():
            curvature = float(self.ask("facts", {}, {}, {}).metrics["curvature"].mean())
            rows = {"p": zeros, "kappa": np.full(len(zeros), WEAK * curvature)}
            held = self.ask("prox", rows, {}, one).rows["x"]
            local = np.where(found[:, None], local, held)
        return outcome, local

    def _labels(self, local: Floats) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The cluster of each user."""
        keys, n = self.own_keys, len(local)
        count = min(keys.local_clusters_number, n)
        if keys.local_clusters_by == "kmeans":
            from sklearn.cluster import KMeans  # 150 MB and a second: not for every process

            seed = int(generator(self.config.run.seed, "kmeans").integers(2**31))
            return in_order(KMeans(count, n_init=10, random_state=seed).fit_predict(local))
        if count:
            return linked(local, count)
        labels = candidate(local)
        return np.arange(n) if labels is None else labels

    def send(self, users: list[str]) -> tuple[Arrays, Arrays]:
        """Nothing goes out before the models are there."""
        return {}, {}

    def show(self, users: list[str], options: Mapping[str, Any]) -> tuple[Arrays, Arrays]:
        """Each user's model; new users choose among all."""
        if not users:
            return {}, {}
        if options.get("adapt"):
            return {}, {"known": np.tile(np.unique(self.models, axis=0), (len(users), 1, 1))}
        place = {user: row for row, user in enumerate(self.state.scalars["users"])}
        return {}, {"x": self.models[[place[user] for user in users]]}

    def findings(self) -> list[dict[str, Any]]:
        """How many clusters, of which sizes."""
        sizes = np.bincount(self.state.scalars["labels"])
        some = ", ".join(map(str, sizes[:20])) + (", ..." if len(sizes) > 20 else "")
        rows = [["clusters", str(len(sizes))], ["users in each", some]]
        return [{"title": "clusters of local models", "rows": rows}]
