"""What convex clustering says at its end: the clusters, how sure they are, and how good."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Floats
from corsage.strategies.convex_clustering.certificate import Certificate
from corsage.strategies.convex_clustering.choice import Choice
from corsage.strategies.convex_clustering.graph import Graph
from corsage.strategies.convex_clustering.models import refitted_models
from corsage.strategies.convex_clustering.questions import Questions
from corsage.strategies.rounds.results import Finding
from corsage.strategies.rounds.turns import Script

if TYPE_CHECKING:
    from corsage.solvers.convex_clustering.expansions import Expansion
    from corsage.solvers.convex_clustering.reading import Reading as Partition
    from corsage.solvers.losses.convex import Losses
    from corsage.strategies.convex_clustering.remote_losses import RemoteUsers

NAMED, USERS = 12, 6
"""Clusters that are listed one by one, and users of a cluster that are named."""
FAR = 0.01
"""A relative gap above this certifies nothing that is of use."""
Row = tuple[str, str]
"""A label and a text."""


@dataclass(frozen=True)
class Reading:
    """The clusters of the models, whether they are exact, and what theory says of them.

    Parameters
    ----------
    labels : the cluster of each user.
    distinct : different models there are.
    exact, gap : whether the solution at lambda has these clusters, and the relative gap of the
        fused models; None if that was not asked.
    necessary, theorem1, theorem2 : the bounds on lambda of section III, where they are known.
    not_refitted : clusters without a best model of their own.
    """

    labels: list[int]
    distinct: int
    exact: bool | None = None
    gap: float | None = None
    necessary: float | None = None
    theorem1: float | None = None
    theorem2: float | None = None
    not_refitted: int | None = None

    @property
    def joined(self) -> bool:
        """Whether some users are a cluster."""
        return max(self.labels, default=0) + 1 < max(len(self.labels), 2)

    @property
    def alone(self) -> int:
        """How many users are a cluster of their own."""
        return int((np.bincount(self.labels) == 1).sum()) if self.labels else 0

    def clustered(self, choice: Choice) -> bool:
        """Whether there are clusters to speak of.

        Where lambda was chosen for models and not for clusters, most of the users must be in some.
        """
        from corsage.solvers.convex_clustering.selection import MODELS

        for_models = choice.exchanges > 0 and choice.kind in ("", MODELS)
        return self.joined and not (for_models and 2 * self.alone > len(self.labels))


@dataclass(frozen=True)
class Solved:
    """What there is to report on: the graph, lambda, the certificate, and the models (N, d).

    `known` are the users' last answers near these models, if all of them answered.
    """

    graph: Graph
    choice: Choice
    certificate: Certificate | None
    models: Floats
    known: Expansion | None = None


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
        """The clusters; and, in full, each user's model of its cluster alone (N, d)."""
        if not self.in_full:
            return plainly_read(solved), None
        from corsage.solvers.convex_clustering.batched import LARGEST

        d = solved.models.shape[1]
        if d <= LARGEST:
            from corsage.strategies.convex_clustering.reading import quickly_read

            users = solved.graph.users
            return (yield from self.questions.batched(users, d, lambda b: quickly_read(b, solved)))

        def work(users: RemoteUsers) -> tuple[Reading, Floats | None]:
            losses = users.losses_without(None)
            reading = fully_read(losses, solved)
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
            if len(reading.labels) == 1 or reading.clustered(solved.choice):
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
            if not certificate.within(FAR):
                proof = (
                    f"far from optimal: relative gap {certificate.relative:.0e}; more num-rounds"
                )
        rows = [("lambda", f"{choice.lam:.6g}{how}"), ("optimality", proof)]
        if certificate is not None and certificate.value is not None:
            rows.append(("objective", f"{certificate.value:.8g}"))
        asked = self.questions.job.progress.questions
        return [*rows, ("exchanges besides the rounds", f"{asked:,}")]


def plainly_read(solved: Solved) -> Reading:
    """The clusters that lambda was chosen for, or those that the models show."""
    from corsage.solvers.convex_clustering.reading import candidates, fused

    distinct = fused(solved.models)
    labels, n = distinct, len(distinct)
    if solved.choice.labels is not None:
        labels = np.array(solved.choice.labels)
    elif solved.choice.lam > 0 and distinct.max() == n - 1:  # nearly fused ones, as pdmm has
        labels = next(candidates(solved.models, most=max(n // 2, 1)), distinct)
    return Reading(labels.tolist(), int(distinct.max()) + 1)


def fully_read(losses: Losses, solved: Solved) -> Reading:
    """The clusters, certified where they can be, and the bounds on lambda."""
    from corsage.solvers.convex_clustering.reading import fused, judged, read

    choice, edges, x = solved.choice, solved.graph.edges, solved.models
    distinct = fused(x)
    chosen = distinct if choice.labels is None else np.array(choice.labels)
    reading = Reading(chosen.tolist(), int(distinct.max()) + 1)
    if not (choice.lam > 0 and len(edges)):
        return reading
    if choice.labels is not None:
        found = judged(losses, chosen, choice.lam, edges)
    else:
        found = read(losses, x, choice.lam, edges)
    reading = replace(reading, labels=found.labels.tolist(), exact=found.exact, gap=found.gap)
    return with_bounds(reading, losses, found) if edges.complete else reading


def with_bounds(reading: Reading, losses: Losses, found: Partition) -> Reading:
    """The reading with the bounds on lambda of section III, which are for all pairs."""
    from corsage.solvers.convex_clustering import recovery

    labels, w = found.labels, found.models
    return replace(
        reading,
        necessary=recovery.necessary(losses, labels, w),
        theorem1=recovery.theorem1(losses, labels, w),
        theorem2=recovery.theorem2(losses, labels, w) if len(w) > 1 else None,
    )


def cluster_rows(reading: Reading, solved: Solved) -> list[Row]:
    """How many clusters there are, how sure that is, and what theory says of lambda."""
    count = max(reading.labels) + 1
    how = {True: "exact", False: "approximate", None: "not certified"}[reading.exact]
    gap = "" if reading.gap is None else f" (relative gap of the fused models {reading.gap:.0e})"
    rows = [("distinct models", str(reading.distinct)), ("clusters", f"{count}, {how}{gap}")]
    sure = "exact" if reading.exact else "not certified"
    if 1 < count == len(reading.labels):
        rows[1] = "clusters", f"none: every user has a model of its own ({sure})"
    elif count > 1 and not reading.clustered(solved.choice):
        own = f"{reading.alone} of {len(reading.labels)} users have models of their own"
        rows[1] = "clusters", f"none to speak of: {own} ({sure})"
    if count == 1 and reading.exact:
        rows.append(("", "lambda is at or above consensus: this is the global model"))
    if reading.exact and 1 < count == len(reading.labels) and not solved.choice.kind:
        rows.append(("", "a larger lambda would fuse some"))
    rows += chosen_rows(solved.choice)
    rows += bounds(reading, solved.choice.lam)
    if reading.not_refitted and count < len(reading.labels):
        rows.append(("clusters without a best model", f"{reading.not_refitted}"))
    if reading.exact and 1 < count < len(reading.labels):
        rows.append(("", "such a window of lambda can be narrow, or not exist for other samples"))
    return rows


def chosen_rows(choice: Choice) -> list[Row]:
    """What did best on held-out samples, where clusters were looked for."""
    if not choice.kind:
        return []
    rows = [("best on held-out samples", f"{choice.kind} (row +chosen)")]
    if choice.gain is not None:
        better = f"{choice.gain:.3g} ± {choice.error:.2g} (held-out loss)"
        rows.append((f"gain over {choice.base}", better))
    if choice.refit is False:
        rows.append(("", "there the clusters' own models are worse than those at lambda"))
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
    for k in range(min(max(reading.labels) + 1, NAMED)):
        inside = [user for user, label in zip(users, reading.labels, strict=True) if label == k]
        some = ", ".join(inside[:USERS]) + (", ..." if len(inside) > USERS else "")
        rows.append((f"cluster {k}", f"{len(inside)} users: {some}"))
    return rows
