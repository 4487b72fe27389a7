"""Questions of convex clustering to all users before the first round, those about lambda, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Bools, Floats
from corsage.core.errors import ModelError
from corsage.core.messages.replies import name_users
from corsage.solvers.convex_clustering.batched import MOST_WITH_HESSIANS
from corsage.solvers.convex_clustering.expansions import Expansion, Probe
from corsage.solvers.convex_clustering.halves import Facts
from corsage.solvers.convex_clustering.recession import falling
from corsage.strategies.convex_clustering.graph import Graph
from corsage.strategies.convex_clustering.probing import ask_all
from corsage.strategies.convex_clustering.questions import Questions
from corsage.strategies.rounds.turns import Script

if TYPE_CHECKING:
    from corsage.solvers.convex_clustering.batched import Users
    from corsage.solvers.convex_clustering.expansions import Expansion
    from corsage.solvers.convex_clustering.runs import Solved

ENDLESS_LOSSES = ("logistic", "cross-entropy")
"""Losses that can fall for ever; others have a best model wherever they are bounded."""
MOST_MEDIANS = 100.0
"""What users say of their losses is no measured fact: so many medians are the most."""
REFUSED_NAMED = 5
"""Users that are named."""
NOBODYS_SHARE = 1e-6
"""A share of records that is none."""
NUMBER_LOSSES = ("squared", "huber")
"""Losses that have a best model wherever there are enough different rows."""
WHY = {
    True: "fewer rows than coefficients, or features that repeat each other",
    False: "samples of one class, or classes that a line separates, without a ridge",
}


def ask_facts(questions: Questions, users: list[str]) -> Script[tuple[Facts, Bools]]:
    """Facts about the users' losses, and whose grow in all directions; others are named."""
    metrics = (yield from questions.ask(users, "facts")).metrics
    held = metrics["coercive"] > 0
    name_free(questions, users, held)
    return Facts(usual(metrics["curvature"]), usual(metrics["slope"])), held


def check_classes(questions: Questions, users: list[str], d: int) -> Script[None]:
    """Refuse several classes of which nobody has one, without a ridge: its scores fall for ever.

    At 0 all classes are as likely, so the slopes of the intercepts say how many records each has.
    """
    job = questions.job
    keys, classes = job.config.model, job.agreed.num_classes
    if job.loss != "cross-entropy" or keys.ridge or not keys.intercept:
        return
    rows, template = {"x": np.zeros((len(users), d))}, {"gradient": np.zeros(d)}
    replies = yield from questions.ask(users, "gradient", rows, template)
    weights = np.maximum(replies.metrics["value"] / np.log(classes), np.finfo(np.float64).tiny)
    shares = 1 / classes - replies.rows["gradient"][:, -classes:] / weights[:, None]
    if (none := np.flatnonzero(shares.max(0) < NOBODYS_SHARE)).size:  # one user's word is enough
        some = ", ".join(map(str, none[:REFUSED_NAMED].tolist()))
        raise ModelError(
            f"{job.name}: no user has a record of class {some}, whose scores would fall for ever: "
            "number the classes from 0 on without gaps, or set ridge=0.001."
        )


def usual(values: Floats) -> float:
    """The mean, in which nobody counts for more than MOST_MEDIANS times the median."""
    return float(np.minimum(values, MOST_MEDIANS * np.median(values)).mean())


def ask_local(questions: Questions, users: list[str], d: int) -> Script[Expansion]:
    """The users' own models, and their losses there."""
    zero = np.zeros((len(users), d))
    (found,) = yield from ask_all(questions, users, d, [Probe(zero, zero, 0.0)])
    return found


def name_free(questions: Questions, users: list[str], held: Bools) -> None:
    """Say which users have no best model of their own."""
    if without := [user for user, found in zip(users, held, strict=True) if not found]:
        questions.job.note(
            f"{name_users(without)} without a best model of their own "
            f"({WHY[questions.job.loss in NUMBER_LOSSES]}): the penalty alone holds them"
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


def check_bounded(
    questions: Questions, graph: Graph, lam: float, d: int, held: Bools
) -> Script[None]:
    """Refuse a problem without a solution; `held` are those whose loss grows in all directions."""
    if questions.job.loss not in ENDLESS_LOSSES:
        return
    n = len(graph.users)
    pieces = graph.edges.components() if lam > 0 else np.arange(n)
    doubtful = [k for k in range(int(pieces.max()) + 1) if not held[pieces == k].any()]
    if not doubtful:
        return
    if d > MOST_WITH_HESSIANS:
        return  # its users have no Hessians: rounds show it
    falls = yield from questions.batched(
        graph.users, d, lambda users: falling(users, pieces, doubtful)
    )
    if falls.any():
        names = [user for user, bad in zip(graph.users, falls[pieces], strict=True) if bad]
        raise ModelError(refusal(names, n, lam))


def refusal(names: Sequence[str], n: int, lam: float) -> str:
    """The words of a refusal."""
    who = "all users" if len(names) == n else "user" + "s" * (len(names) > 1)
    if len(names) < n:
        who += f" {', '.join(names[:REFUSED_NAMED])}" + ", ..." * (len(names) > REFUSED_NAMED)
    together = " together" * (lam > 0 and len(names) > 1)
    return (
        f"convex-lambda={lam:g}: {who}{together} without a best model: classes that a plane "
        "separates, or samples of one class; its numbers would grow for ever. Set ridge=0.001"
        + (", or a lambda above 0." if lam == 0 else ".")
    )


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
