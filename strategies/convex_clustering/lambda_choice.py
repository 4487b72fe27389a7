"""lambda, found by asking the users: the best for their models, or for clusters of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from corsage.solvers.convex_clustering.selection import MODELS
from corsage.strategies.convex_clustering.graph import Graph
from corsage.strategies.convex_clustering.opening import ask_facts
from corsage.strategies.convex_clustering.questions import Questions
from corsage.strategies.rounds.turns import Script

if TYPE_CHECKING:
    from corsage.core.arrays import Floats
    from corsage.solvers.convex_clustering.batched import Users
    from corsage.solvers.convex_clustering.expansions import Expansion
    from corsage.solvers.convex_clustering.runs import Solved
    from corsage.solvers.convex_clustering.selection import Candidate


MANY_USERS = 1000
"""Users among whom lambda is not found in seconds."""


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
    refit : whether the clusters' own models are better there than the models at lambda; None if
        `base` was chosen.
    """

    lam: float
    exchanges: int = 0
    labels: list[int] | None = None
    kind: str = ""
    base: str = ""
    gain: float | None = None
    error: float | None = None
    refit: bool | None = None

    @property
    def for_models(self) -> bool:
        """True if lambda was looked for, and not for clusters."""
        return self.exchanges > 0 and self.kind in ("", MODELS)


@dataclass(frozen=True, eq=False)
class Found:
    """lambda, and what was learned on the way to it.

    Parameters
    ----------
    choice : lambda.
    models : what does best of all, where clusters were looked for (N, d).
    start : a solution that is near the one at lambda.
    local : the users' own models, and their losses there; None if no Hessians were sent.
    """

    choice: Choice
    models: Floats | None = None
    start: Solved | None = None
    local: Expansion | None = None


def choose(questions: Questions, graph: Graph, d: int, of_clusters: bool) -> Script[Found]:
    """lambda by held-out samples, or what does best of all with its models."""
    from corsage.solvers.convex_clustering.batched import MOST_WITH_HESSIANS, Batched

    if d > MOST_WITH_HESSIANS and not of_clusters and questions.job.loss == "cross-entropy":
        return (yield from roughly(questions, graph, d))
    if d > MOST_WITH_HESSIANS:
        questions.job.note(
            f"models of {d} numbers: above {MOST_WITH_HESSIANS} no Hessians are sent, and "
            "looking for lambda takes hundreds or thousands of exchanges; convex-lambda=NUMBER "
            "takes none"
        )

    if len(graph.users) > MANY_USERS:
        questions.job.note(
            f"{len(graph.users):,} users: looking for lambda takes minutes and gigabytes; "
            "convex-lambda=NUMBER takes none, convex-graph=knn takes less"
        )

    def work(users: Users) -> Found:
        seed = questions.job.config.run.seed
        found = best_of_all(users, graph, seed) if of_clusters else best_for_models(users, graph)
        local = users.known[None][0] if isinstance(users, Batched) else None
        return replace(found, local=local)

    found = yield from questions.of_users(graph.users, d, work)
    asked = questions.job.progress.questions
    return replace(found, choice=replace(found.choice, exchanges=asked))


def roughly(questions: Questions, graph: Graph, d: int) -> Script[Found]:
    """The lambda of the least held-out loss on a path of few lambdas, each solved roughly."""
    from corsage.solvers.convex_clustering.rough_path import best_lambda

    facts, _ = yield from ask_facts(questions, graph.users)
    lam = yield from questions.about_losses(
        graph.users, d, lambda users: best_lambda(users, graph.edges, facts, d)
    )
    return Found(Choice(lam, exchanges=questions.job.progress.questions))


def best_for_models(users: Users, graph: Graph) -> Found:
    """The lambda of the least held-out loss."""
    from corsage.solvers.convex_clustering.selection import choose_for_models

    found = choose_for_models(users, graph.edges)
    return Found(Choice(found.lam), start=found.start)


def best_of_all(users: Users, graph: Graph, seed: int) -> Found:
    """The procedure that cross-validation says is best; clusters only if they pay."""
    from corsage.solvers.convex_clustering.selection import choose_for_clusters

    found = choose_for_clusters(users, graph.edges, seed)
    chosen, base = found.chosen, found.base
    gain, error = (None, None) if chosen is base else chosen.gain(base)
    words = named(chosen), named(base)
    labels = found.labels.tolist()
    refit = None if chosen is base else found.refit_is_better
    choice = Choice(found.lam, 0, labels, *words, gain, error, refit)
    return Found(choice, found.models, found.start)


def named(candidate: Candidate) -> str:
    """A procedure in words."""
    from corsage.solvers.convex_clustering.partitions import KMEANS, LAMBDA, WARD

    count = candidate.clusters
    clusters = f"{count} cluster{'s' * (count > 1)}"
    words = {
        KMEANS: f"k-means of the local models, {clusters}",
        WARD: f"Ward's linkage of the local models, {clusters}",
        LAMBDA: f"the path of lambda, {clusters}",
    }
    return words.get(candidate.kind, candidate.kind)
