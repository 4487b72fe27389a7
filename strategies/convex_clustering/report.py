"""The report of convex clustering: the clusters, how sure they are, and how good.

The duality gap is two floats a user; exact/certificate.py of the solvers has the formula.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from corsage.core.arrays import Floats
from corsage.core.errors import ModelError, line
from corsage.core.messages.replies import Replies
from corsage.solvers.convex_clustering.batched import MOST_WITH_HESSIANS
from corsage.solvers.convex_clustering.couplings import Penalty
from corsage.solvers.convex_clustering.newton import Newton
from corsage.solvers.convex_clustering.reading import refitted_models
from corsage.solvers.convex_clustering.summary import (
    Reading,
    Solution,
    fully_read,
    plainly_read,
    quickly_read,
)
from corsage.strategies.convex_clustering.graph import Graph
from corsage.strategies.convex_clustering.opening import Choice
from corsage.strategies.convex_clustering.questions import Questions
from corsage.strategies.rounds.results import Finding
from corsage.strategies.rounds.turns import Script

if TYPE_CHECKING:
    from corsage.solvers.convex_clustering.expansions import Expansion
    from corsage.strategies.convex_clustering.remote_losses import RemoteUsers


class Solver(Protocol):
    """Models, and duals of the edges."""

    @property
    def models(self) -> Floats:
        """X (N, d)."""

    @property
    def mu(self) -> Floats:
        """(E, d)."""


@dataclass(frozen=True)
class Certificate:
    """A certificate of the models after a round.

    Parameters
    ----------
    round : the round.
    value : P(X); None if not all users answered.
    gap : at most so much is P(X) above its minimum; None if nothing is known: not all users
        answered, or one has no best model under its duals.
    relative : the gap as a share of sum |f_i(x_i)| + penalty.
    nearby : the gap holds against models at most 100 times as far away: somebody has no best one.
    """

    round: int
    value: float | None = None
    gap: float | None = None
    relative: float | None = None
    nearby: bool = False

    def within(self, tolerance: float) -> bool:
        """True if the models are known to be that good."""
        return self.relative is not None and self.relative <= tolerance


def of_newton(solver: Newton, number: int) -> Certificate | None:
    """The certificate that a step of Newton's method comes with; None if not all users answered."""
    if not np.isfinite(solver.objective):
        return None
    if not np.isfinite(solver.gap):
        return Certificate(number, solver.objective)
    gap, tiny = max(solver.gap, 0.0), np.finfo(np.float64).tiny
    nearby = solver.near < solver.objective - solver.lower
    return Certificate(number, solver.objective, gap, gap / max(solver.size, tiny), nearby)


def certify(
    questions: Questions, graph: Graph, lam: float, solver: Solver, number: int
) -> Script[Certificate]:
    """The certificate after round `number`: a user gets x_i and v_i = sum_j mu_ij."""
    from corsage.solvers.convex_clustering.exact.certificate import feasible

    x, edges = solver.models, graph.edges
    mu = feasible(solver.mu, lam * edges.w)
    rows = {"x": x, "v": edges.adjoint(mu)}
    replies = yield from questions.ask(graph.users, "slack", rows, strict=False, number=number)
    if len(replies.users) < len(x):
        return Certificate(number)
    return with_gap(replies, graph, lam, x, mu, number)


def with_gap(
    replies: Replies, graph: Graph, lam: float, x: Floats, mu: Floats, number: int
) -> Certificate:
    """The gap out of the users' slack and the edges'; mu are feasible duals."""
    from corsage.solvers.convex_clustering.exact.certificate import edge_terms
    from corsage.solvers.convex_clustering.exact.edges import norms

    metrics, radius, apart = replies.metrics, lam * graph.edges.w, graph.edges.differences(x)
    slack = np.maximum(metrics["at_x"] - metrics["least"], 0.0)
    gap = float(slack.sum() + edge_terms(apart, mu, radius).sum())
    penalty = float((radius * norms(apart)).sum())
    value = float(metrics["value"].sum()) + penalty
    if not (metrics["found"] > 0).all():
        return Certificate(number, value)
    size = float(np.abs(metrics["value"]).sum()) + penalty
    return Certificate(number, value, gap, gap / max(size, np.finfo(np.float64).tiny))


CLUSTERS_LISTED, USERS_NAMED = 12, 6
"""Clusters that are listed one by one, and users of a cluster that are named."""
USELESS_GAP = 0.01
"""A relative gap above this certifies nothing that is of use."""
Row = tuple[str, str]
"""A label and a text."""


@dataclass(frozen=True)
class Solved:
    """A solution to report on: the graph, lambda, the certificate, and the models (N, d).

    `known` are the users' last answers near these models, if all of them answered.
    """

    graph: Graph
    choice: Choice
    certificate: Certificate | None
    models: Floats
    known: Expansion | None = None

    @property
    def solution(self) -> Solution:
        """The same for the solvers."""
        return Solution(Penalty(self.choice.lam, self.graph.edges), self.models, self.known)


class ClusterReport:
    """Reads the clusters of a solution, and says what was found.

    Parameters
    ----------
    questions : to the users.
    in_full : ask for what it takes to certify and refit the clusters; else nothing is asked.
    """

    def __init__(self, questions: Questions, in_full: bool) -> None:
        self.questions, self.in_full = questions, in_full

    def read(self, solved: Solved) -> Script[tuple[Reading, Floats | None]]:
        """The clusters; and, in full, each user's model of its cluster alone (N, d).

        The models are there already: where what is said of them fails, it is left out.
        """
        many = solved.models.shape[1] > MOST_WITH_HESSIANS
        if not self.in_full or (many and self.questions.job.loss == "cross-entropy"):
            return plainly_read(solved.solution), None
        try:
            return (yield from self._read_in_full(solved))
        except (ModelError, ArithmeticError, ValueError) as error:
            self.questions.job.note.warn(f"clusters are as models lie, uncertified: {line(error)}")
            return plainly_read(solved.solution), None

    def _read_in_full(self, solved: Solved) -> Script[tuple[Reading, Floats | None]]:
        """The same, of what all users answer."""
        solution, d = solved.solution, solved.models.shape[1]
        if d <= MOST_WITH_HESSIANS:
            users = solved.graph.users
            return (
                yield from self.questions.batched(users, d, lambda b: quickly_read(b, solution))
            )

        def work(users: RemoteUsers) -> tuple[Reading, Floats | None]:
            losses = users.losses_without(None)
            reading = fully_read(losses, solution)
            labels = np.array(reading.labels)
            refitted, missing = refitted_models(losses, labels, solved.models)
            return replace(reading, not_refitted=missing), refitted

        return (yield from self.questions.about_losses(solved.graph.users, d, work))

    # In words.

    def findings(self, solved: Solved, reading: Reading | None) -> list[Finding]:
        """The certificate and the clusters."""
        found = [Finding("solution", self._solution(solved))]
        if reading is not None:
            rows = cluster_rows(reading, solved)
            if len(reading.labels) == 1 or reading.clustered(solved.choice.exchanges > 0):
                rows += members(reading, solved.graph.users)
            found.append(Finding("clusters", rows))
        return found

    def _solution(self, solved: Solved) -> list[Row]:
        """lambda, whether the models are optimal, and what it took to ask."""
        choice, certificate = solved.choice, solved.certificate
        how = f" (found by {choice.exchanges:,} exchanges)" if choice.exchanges else ""
        proof = (
            "not certified: not all users answered, or one has no best model under its duals, as "
            "with few rows; ridge=0.001 gives every user one"
        )
        if certificate is not None and certificate.relative is not None:
            proof = f"certified: relative gap {certificate.relative:.0e}"
            if certificate.nearby:
                proof += " to models at most 100 times as far away (somebody has no best one alone)"
            if not certificate.within(USELESS_GAP):
                proof = (
                    f"far from optimal: relative gap {certificate.relative:.0e}; more num-rounds"
                )
        rows = [("lambda", f"{choice.lam:.6g}{how}"), ("optimality", proof)]
        if certificate is not None and certificate.value is not None:
            rows.append(("objective", f"{certificate.value:.8g}"))
        asked = self.questions.job.progress.questions
        return [*rows, ("exchanges besides the rounds", f"{asked:,}")]


def cluster_rows(reading: Reading, solved: Solved) -> list[Row]:
    """The number of clusters, how sure it is, and what theory says of lambda."""
    count = max(reading.labels) + 1
    how = {True: "exact", False: "approximate", None: "not certified"}[reading.exact]
    gap = "" if reading.gap is None else f" (relative gap of the fused models {reading.gap:.0e})"
    rows = [("distinct models", str(reading.distinct)), ("clusters", f"{count}, {how}{gap}")]
    sure = "exact" if reading.exact else "not certified"
    if 1 < count == len(reading.labels):
        rows[1] = "clusters", f"none: every user has a model of its own ({sure})"
    elif count > 1 and not reading.clustered(solved.choice.exchanges > 0):
        own = f"{reading.alone} of {len(reading.labels)} users have models of their own"
        rows[1] = "clusters", f"none to speak of: {own} ({sure})"
    if count == 1 and reading.exact:
        rows.append(("", "lambda is at or above consensus: this is the global model"))
    if reading.exact and 1 < count == len(reading.labels):
        rows.append(("", "a larger lambda would fuse some"))
    rows += bounds(reading, solved.choice.lam)
    if reading.not_refitted and count < len(reading.labels):
        rows.append(("clusters without a best model", f"{reading.not_refitted}"))
    if reading.exact and 1 < count < len(reading.labels):
        rows.append(("", "such a window of lambda can be narrow, or not exist for other samples"))
    return rows


def bounds(reading: Reading, lam: float) -> list[Row]:
    """The bounds on lambda, and whether it keeps to them."""
    wanted = (
        ("necessary: lambda at least", reading.necessary, operator.ge),
        ("sufficient, Theorem 1: at least", reading.theorem1, operator.ge),
        ("sufficient, Theorem 2: below", reading.theorem2, operator.lt),
    )
    return [
        (needs, f"{bound:.6g}: {'yes' if keeps(lam, bound) else 'no'}")
        for needs, bound, keeps in wanted
        if bound is not None
    ]


def members(reading: Reading, users: list[str]) -> list[Row]:
    """The users of the first clusters."""
    rows: list[Row] = []
    if 1 < max(reading.labels) + 1 == len(reading.labels):
        return rows
    for k in range(min(max(reading.labels) + 1, CLUSTERS_LISTED)):
        inside = [user for user, label in zip(users, reading.labels, strict=True) if label == k]
        some = ", ".join(inside[:USERS_NAMED]) + (", ..." if len(inside) > USERS_NAMED else "")
        rows.append((f"cluster {k}", f"{len(inside)} users: {some}"))
    return rows
