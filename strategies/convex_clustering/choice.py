"""lambda, found by asking the users: the best for their models, or for clusters of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from corsage.strategies.convex_clustering.graph import Graph
from corsage.strategies.convex_clustering.questions import Questions
from corsage.strategies.rounds.turns import Script

if TYPE_CHECKING:
    from corsage.core.arrays import Floats
    from corsage.solvers.losses.convex import Losses
    from corsage.strategies.convex_clustering.remote_losses import RemoteUsers

GAP = 1e-6
"""Relative gap of the solutions that lambda is chosen from."""


@dataclass(frozen=True)
class Choice:
    """lambda, and how it was found.

    Parameters
    ----------
    lam : lambda.
    exchanges : how many there were until it was known; 0: it was given.
    labels : the cluster of each user that it was chosen for, if it was chosen for clusters.
    gain, error : by how much the clusters' models are better than one model, and the standard
        error of that; None if one cluster was chosen without a test.
    """

    lam: float
    exchanges: int = 0
    labels: list[int] | None = None
    gain: float | None = None
    error: float | None = None


def choose(questions: Questions, graph: Graph, d: int, of_clusters: bool) -> Script[Choice]:
    """lambda by held-out samples, or by the clusters that it proposes."""

    def work(users: RemoteUsers) -> Choice:
        return best_for_clusters(users, graph) if of_clusters else best_for_models(users, graph)

    found = yield from questions.about_losses(graph.users, d, work)
    exchanges = questions.federation.progress.questions
    return Choice(found.lam, exchanges, found.labels, found.gain, found.error)


def best_for_models(users: RemoteUsers, graph: Graph) -> Choice:
    """The lambda of the least held-out loss."""
    from corsage.solvers.convex_clustering.lambda_choice import choose_for_models

    return Choice(choose_for_models(users, lambda f, lams: solutions(f, lams, graph)).lam)


def best_for_clusters(users: RemoteUsers, graph: Graph) -> Choice:
    """The lambda of the clusters whose own models are best; of one cluster if none pay."""
    from corsage.solvers.convex_clustering.lambda_choice import choose_for_clusters

    found = choose_for_clusters(users, lambda f, lams: solutions(f, lams, graph))
    tested = not np.isnan(found.gain)
    return Choice(
        found.lam,
        labels=found.labels.tolist(),
        gain=found.gain if tested else None,
        error=found.error if tested else None,
    )


def solutions(losses: Losses, lams: Floats, graph: Graph) -> list[Floats]:
    """X of each lambda."""
    from corsage.solvers.convex_clustering import sum_of_norms

    found = sum_of_norms.path(losses, lams.tolist(), graph.edges, tolerance=GAP)
    return [solution.x for solution in found]
