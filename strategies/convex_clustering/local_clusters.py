"""Local models first, clusters of them second, one refitted model a cluster last.

What convex clustering is to be compared with: every user finds its own minimiser of f_i, the server
groups these by k-means or average linkage, and each cluster's model is the minimiser of the sum of
its f_i (found by Newton's method over the users). Needs users with samples enough for a model of
their own; those that have no best one take a proximal step from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord

from corsage.core.arrays import Arrays, Floats, Ints
from corsage.core.errors import ConfigError
from corsage.core.keys import Keys, key
from corsage.core.messages.encoding import encode
from corsage.core.messages.replies import Replies
from corsage.core.seeding import generator
from corsage.solvers.convex_clustering.batched import MOST_WITH_HESSIANS
from corsage.solvers.convex_clustering.reading import candidate, in_order, linked, refitted_models
from corsage.strategies.convex_clustering.models import (
    WEAK_PULL,
    check_convex,
    of_left_out,
    shown,
    to_choose_from,
)
from corsage.strategies.convex_clustering.questions import Questions
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.results import Finding
from corsage.strategies.rounds.turns import Parcel, Question, Script

if TYPE_CHECKING:
    from corsage.networks.network import Network
    from corsage.strategies.convex_clustering.remote_losses import RemoteUsers

OWN_MODEL = "they are grouped by one of their best models"
SIZES_NAMED = 20
"""Clusters whose sizes are named."""


@dataclass(frozen=True)
class LocalClustersKeys(Keys):
    """Keys of clusters of local models."""

    title = "Clusters of local models"
    example: ClassVar = {"dataset": "ellipses"}
    needs: ClassVar = {"model": "linear"}

    local_clusters_by: str = key(
        "average", "average linkage, or kmeans", choices=("average", "kmeans")
    )
    local_clusters_number: int = key(
        0, "clusters; 0: where the dendrogram has its largest gap (average)", low=0
    )


@dataclass
class LocalClustersState:
    """The users, one model each, the same for all of a cluster (N, d), and their clusters.

    `disproved` has who is left out for the rest of the run, and why: a resumed run says it, too.
    """

    users: list[str]
    models: Floats
    labels: list[int] = field(default_factory=list)
    disproved: dict[str, str] = field(default_factory=dict)


class LocalClusters(Strategy[LocalClustersKeys, LocalClustersState]):
    """The server: one exchange for the local models, a few for the clusters'."""

    name = "local-clusters"
    own_steps = "users minimise"
    solves = True
    draws = False
    unprotected = "clusters' models minimise sums of their users' losses, nothing is averaged"
    no_server_step = unprotected
    untrained = own_steps

    def prepare(self) -> None:
        """k-means must be told how many clusters there are."""
        keys = self.keys
        if keys.local_clusters_by == "kmeans" and not keys.local_clusters_number:
            raise ConfigError("local-clusters-by=kmeans: it needs local-clusters-number above 0.")
        self.questions = Questions(self.job)

    def initial(self, network: Network) -> LocalClustersState:
        """All users take part; their models are 0 before they are known."""
        check_convex(self.job, network)
        users = self.members.users
        return LocalClustersState(users, np.zeros((len(users), network.whole.stop)))

    def opening(self) -> Script[None]:
        """A resumed run goes on without those whom it had left out for good."""
        self.questions.disproof.faults |= self.state.disproved
        self.members.left_out |= self.state.disproved.keys()
        yield from ()

    def round(self, number: int) -> Script[Replies]:
        """One round is all, and needs an answer of everybody."""
        return (yield from self.questions.without_silent(self._clustered))

    def _clustered(self) -> Script[Replies]:
        """Local models, their clusters, and the clusters' models."""
        here = self.members.users  # some came, left, or do not answer
        if self.state.users != here:
            self.state = LocalClustersState(here, np.zeros((len(here), self.models.shape[1])))
        replies, local = yield from self.local_models()
        labels = self.clusters(local)

        users, d = self.state.users, local.shape[1]
        large = d > MOST_WITH_HESSIANS and self.job.loss == "cross-entropy"

        def refit(users: RemoteUsers) -> tuple[Floats, int]:
            return refitted_models(users.losses_without(None), labels, local, by_slopes=large)

        models, _ = yield from self.questions.about_losses(users, d, refit)
        faults = dict(self.questions.disproof.faults)
        self.state = LocalClustersState(users, models, labels.tolist(), faults)
        return replies

    def finished(self) -> bool:
        """One round is all."""
        return self.progress.round > 0

    def local_models(self) -> Script[tuple[Replies, Floats]]:
        """argmin f_i; where there is none, near 0 and what f_i wants."""
        users, zeros = self.state.users, np.zeros(self.state.models.shape)
        template, ask = {"x": zeros[0]}, self.questions.ask
        replies = yield from ask(users, "minimise", {"slope": zeros}, template)
        local, found = np.asarray(replies.rows["x"]), replies.metrics["found"] > 0
        if not found.all():
            facts = yield from ask(users, "facts")
            kappa = np.full(len(zeros), WEAK_PULL * float(facts.metrics["curvature"].mean()))
            held = yield from ask(users, "prox", {"p": zeros, "kappa": kappa}, template)
            local = np.where(found[:, None], local, held.rows["x"])
        return replies, local

    def clusters(self, local: Floats) -> Ints:
        """The cluster of each user."""
        keys, n = self.keys, len(local)
        count = min(keys.local_clusters_number, n)
        if keys.local_clusters_by == "kmeans":
            from sklearn.cluster import KMeans  # 150 MB and a second: not for every process

            seed = int(generator(self.config.run.seed, "kmeans").integers(2**31))
            return in_order(KMeans(count, n_init=10, random_state=seed).fit_predict(local))
        if count:
            return linked(local, count)
        labels = candidate(local)
        return np.arange(n) if labels is None else labels

    @property
    def models(self) -> Floats:
        """X (N, d): one model a user, the same for all of a cluster."""
        return self.state.models

    def shared(self) -> Arrays:
        """Nothing is the same for all."""
        return {}

    def user_clusters(self, row: str) -> dict[str, str]:
        """Each user's cluster, by its number."""
        state = self.state
        return {user: str(c) for user, c in zip(state.users, state.labels, strict=False)}

    def show(self, users: list[str], options: Mapping[str, Any]) -> Parcel:
        """Each user's model; new users choose among all."""
        if options.get("adapt"):
            return to_choose_from(self.models)
        return shown(self.state.users, self.models, users)

    def findings(self) -> list[Finding]:
        """The number of clusters, and their sizes."""
        sizes = np.bincount(self.state.labels)
        some = ", ".join(map(str, sizes[:SIZES_NAMED])) + (
            ", ..." if len(sizes) > SIZES_NAMED else ""
        )
        rows = [("clusters", str(len(sizes))), ("users in each", some)]
        rows += self.job.members.few_rows(self.models.shape[1], OWN_MODEL)
        aside = [(f"user {u}", why) for u, why in self.questions.disproof.faults.items()]
        left = [Finding("Left out: each has its own model", aside)] if aside else []
        return [Finding("clusters of local models", rows), *left]

    def evaluations(
        self, options: Mapping[str, Any], some: bool = False
    ) -> Iterable[Callable[[], Question]]:
        """Those of the problem, and those who are left out of it for good."""
        yield from super().evaluations(options, some)
        yield from of_left_out(self, self.questions.disproof.faults, options, some)

    def named_arrays(self) -> ArrayRecord:
        """The mean of all models, under the names that a Flower user expects."""
        mean = self.models.mean(0).astype(np.float32)
        return encode(self.job.network.named(mean))
