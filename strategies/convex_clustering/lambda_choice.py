"""lambda, found by asking the users: the best for their models on held-out samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from corsage.strategies.convex_clustering.graph import Graph
from corsage.strategies.convex_clustering.opening import ask_facts
from corsage.strategies.convex_clustering.questions import Questions
from corsage.strategies.rounds.turns import Script

if TYPE_CHECKING:
    from corsage.solvers.convex_clustering.batched import Users
    from corsage.solvers.convex_clustering.expansions import Expansion
    from corsage.solvers.convex_clustering.runs import Solved


MANY_USERS = 1000
"""Users among whom lambda is not found in seconds."""


@dataclass(frozen=True)
class Choice:
    """lambda, and how many exchanges there were until it was known; 0: it was given."""

    lam: float
    exchanges: int = 0


@dataclass(frozen=True, eq=False)
class Found:
    """lambda, and what was learned on the way to it.

    Parameters
    ----------
    choice : lambda.
    start : a solution that is near the one at lambda.
    local : the users' own models, and their losses there; None if no Hessians were sent.
    """

    choice: Choice
    start: Solved | None = None
    local: Expansion | None = None


def choose(questions: Questions, graph: Graph, d: int) -> Script[Found]:
    """lambda by held-out samples."""
    from corsage.solvers.convex_clustering.batched import MOST_WITH_HESSIANS, Batched
    from corsage.solvers.convex_clustering.selection import choose_for_models

    if d > MOST_WITH_HESSIANS and questions.job.loss == "cross-entropy":
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

    def work(users: Users) -> tuple[float, Solved, Expansion | None]:
        found = choose_for_models(users, graph.edges, questions.job.loss == "cross-entropy")
        local = users.known[None][0] if isinstance(users, Batched) else None
        return found.lam, found.start, local

    lam, start, local = yield from questions.of_users(graph.users, d, work)
    return Found(Choice(lam, questions.job.progress.questions), start, local)


def roughly(questions: Questions, graph: Graph, d: int) -> Script[Found]:
    """The lambda of the least held-out loss on a path of few lambdas, each solved roughly."""
    from corsage.solvers.convex_clustering.selection import best_lambda

    facts, _ = yield from ask_facts(questions, graph.users)
    lam = yield from questions.about_losses(
        graph.users, d, lambda users: best_lambda(users, graph.edges, facts, d)
    )
    return Found(Choice(lam, questions.job.progress.questions))
