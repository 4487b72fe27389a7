"""lambda, found by asking the users: the best for their models, or for clusters of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from corsage.strategies.convex_clustering.graph import Graph
from corsage.strategies.convex_clustering.questions import Questions
from corsage.strategies.rounds.turns import Script

if TYPE_CHECKING:
    from corsage.core.arrays import Floats
    from corsage.solvers.convex_clustering.batched import Users
    from corsage.solvers.convex_clustering.selection import Candidate


@dataclass(frozen=True)
class Choice:
    """lambda, and how it was found.

    Parameters
    ----------
    lam : lambda.
    exchanges : how many there were until it was known; 0: it was given.
    labels : the cluster of each user that was chosen, if clusters were looked for.
    kind, base : the procedure that was chosen, and the better one of one model for all and each
        user's own; empty if clusters were not looked for.
    gain, error : by how much the chosen models are better than those of `base` on held-out samples,
        and the standard error of that; None if these are the chosen ones.
    refit : whether the clusters' own models are better there than the models at lambda.
    """

    lam: float
    exchanges: int = 0
    labels: list[int] | None = None
    kind: str = ""
    base: str = ""
    gain: float | None = None
    error: float | None = None
    refit: bool | None = None


def choose(
    questions: Questions, graph: Graph, d: int, of_clusters: bool
) -> Script[tuple[Choice, Floats | None]]:
    """lambda by held-out samples, or what does best of all with its models (N, d)."""

    def work(users: Users) -> tuple[Choice, Floats | None]:
        seed = questions.federation.config.run.seed
        return best_of_all(users, graph, seed) if of_clusters else best_for_models(users, graph)

    choice, models = yield from questions.of_users(graph.users, d, work)
    return replace(choice, exchanges=questions.federation.progress.questions), models


def best_for_models(users: Users, graph: Graph) -> tuple[Choice, None]:
    """The lambda of the least held-out loss."""
    from corsage.solvers.convex_clustering.selection import choose_for_models

    return Choice(choose_for_models(users, graph.edges).lam), None


def best_of_all(users: Users, graph: Graph, seed: int) -> tuple[Choice, Floats]:
    """The procedure that cross-validation says is best; clusters only if they pay."""
    from corsage.solvers.convex_clustering.selection import choose_for_clusters

    found = choose_for_clusters(users, graph.edges, seed)
    chosen, base = found.chosen, found.base
    gain, error = (None, None) if chosen is base else chosen.gain(base)
    words = named(chosen), named(base)
    labels = found.labels.tolist()
    return Choice(found.lam, 0, labels, *words, gain, error, found.refit_is_better), found.models


def named(candidate: Candidate) -> str:
    """A procedure in words."""
    from corsage.solvers.convex_clustering.selection import KMEANS, LAMBDA, WARD

    count = candidate.clusters
    clusters = f"{count} cluster{'s' * (count > 1)}"
    words = {
        KMEANS: f"k-means of the local models, {clusters}",
        WARD: f"Ward's linkage of the local models, {clusters}",
        LAMBDA: f"the path of lambda, {clusters}",
    }
    return words.get(candidate.kind, candidate.kind)
