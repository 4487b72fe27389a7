"""What convex clustering asks all users before the first round, besides what finds lambda."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Bools
from corsage.core.messages.replies import name_users
from corsage.solvers.convex_clustering.halves import Facts
from corsage.strategies.convex_clustering.graph import Graph
from corsage.strategies.convex_clustering.probing import ask_all
from corsage.strategies.convex_clustering.questions import Questions
from corsage.strategies.rounds.turns import Script

if TYPE_CHECKING:
    from corsage.solvers.convex_clustering.expansions import Expansion

NUMBERS = ("squared", "huber")
"""Losses that have a best model wherever there are enough different rows."""
WHY = {
    True: "fewer rows than coefficients, or features that repeat each other",
    False: "samples of one class, or classes that a line separates, without a ridge",
}


def ask_facts(questions: Questions, users: list[str]) -> Script[tuple[Facts, Bools]]:
    """What the users know of their losses, and whose grow in all directions; others are named."""
    metrics = (yield from questions.ask(users, "facts")).metrics
    held = metrics["coercive"] > 0
    name_free(questions, users, held)
    return Facts(float(metrics["curvature"].mean()), float(metrics["slope"].mean())), held


def ask_local(questions: Questions, users: list[str], d: int) -> Script[Expansion]:
    """The users' own models, and their losses there."""
    from corsage.solvers.convex_clustering.expansions import Probe

    zero = np.zeros((len(users), d))
    (found,) = yield from ask_all(questions, users, d, [Probe(zero, zero, 0.0)])
    return found


def name_free(questions: Questions, users: list[str], held: Bools) -> None:
    """Say which users have no best model of their own."""
    if without := [user for user, found in zip(users, held, strict=True) if not found]:
        questions.job.note(
            f"{name_users(without)} without a best model of their own "
            f"({WHY[questions.job.loss in NUMBERS]}): the penalty alone holds them"
        )


def ask_neighbours(questions: Questions, users: list[str], d: int, k: int) -> Script[Graph]:
    """The graph of the k nearest local models; those of users without a best one count as 0."""
    rows, template = {"slope": np.zeros((len(users), d))}, {"x": np.zeros(d)}
    replies = yield from questions.ask(users, "minimise", rows, template)
    k = min(k, len(users) - 1)
    graph = Graph.of_neighbours(users, replies.rows["x"], k)
    if graph.edges.pieces > 1:
        questions.job.note(
            f"the graph of {k} neighbours falls into {graph.edges.pieces} pieces, which never "
            "fuse: raise convex-neighbours to join them"
        )
    return graph
