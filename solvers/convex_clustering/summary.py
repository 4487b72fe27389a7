"""The clusters of a solution, read, certified and refitted in a handful of exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.solvers.convex_clustering import recovery
from corsage.solvers.convex_clustering.batched import Batched
from corsage.solvers.convex_clustering.couplings import Clusters, Parts, Penalty
from corsage.solvers.convex_clustering.exact.partition import proved
from corsage.solvers.convex_clustering.expansions import Expansion, models
from corsage.solvers.convex_clustering.reading import (
    CANDIDATES,
    EXACT_GAP,
    apart,
    candidates,
    fused,
    in_order,
    read,
    unsolved,
)
from corsage.solvers.convex_clustering.runs import LEAST_DAMPING, Run, Solved, Task
from corsage.solvers.losses.convex import Losses

READING_EXCHANGES = 12
"""Exchanges that the clusters' models take at most."""
REFIT = 1e-7
"""The relative gap of the clusters' own models."""
BEST = 1e-6
"""A cluster's share of a relative gap that says that its model is the best."""


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
        """True if some users are a cluster."""
        return max(self.labels, default=0) + 1 < max(len(self.labels), 2)

    @property
    def alone(self) -> int:
        """The number of users that are a cluster of their own."""
        return int((np.bincount(self.labels) == 1).sum()) if self.labels else 0

    def clustered(self, for_models: bool) -> bool:
        """True if there are clusters to speak of.

        Where lambda was chosen for models and not for clusters, most of the users must be in some.
        """
        return self.joined and not (for_models and 2 * self.alone > len(self.labels))


@dataclass(frozen=True)
class Solution:
    """Models that are to be read.

    Parameters
    ----------
    penalty : lambda and the edges.
    models : of all users (N, d).
    known : the users' last answers near these models, if all of them answered.
    """

    penalty: Penalty
    models: Floats
    known: Expansion | None = None


def plainly_read(solution: Solution) -> Reading:
    """The clusters that the models show."""
    distinct = fused(solution.models)
    labels, n = distinct, len(distinct)
    if solution.penalty.lam > 0 and distinct.max() == n - 1:  # nearly fused ones, as pdmm has
        labels = next(candidates(solution.models, most=max(n // 2, 1)), distinct)
    return Reading(labels.tolist(), int(distinct.max()) + 1)


def fully_read(losses: Losses, solution: Solution) -> Reading:
    """The clusters, certified where they can be, and the bounds on lambda."""
    lam, edges, x = solution.penalty.lam, solution.penalty.edges, solution.models
    distinct = fused(x)
    reading = Reading(distinct.tolist(), int(distinct.max()) + 1)
    if not (lam > 0 and len(edges)):
        return reading
    found = read(losses, x, lam, edges)
    reading = replace(reading, labels=found.labels.tolist(), exact=found.exact, gap=found.gap)
    return with_bounds(reading, losses, found.labels, found.models) if edges.complete else reading


def with_bounds(reading: Reading, losses: recovery.Gradients, labels: Ints, w: Floats) -> Reading:
    """The reading with the bounds on lambda of section III, which are for all pairs."""
    return replace(
        reading,
        necessary=recovery.necessary(losses, labels, w),
        theorem1=recovery.theorem1(losses, labels, w),
        theorem2=recovery.theorem2(losses, labels, w) if len(w) > 1 else None,
    )


def quickly_read(users: Batched, solution: Solution) -> tuple[Reading, Floats]:
    """The clusters, whether they are exact, the bounds on lambda, and their own models (N, d)."""
    lam, edges, x = solution.penalty.lam, solution.penalty.edges, solution.models
    if not tied(solution):
        return untied(users, solution)
    distinct = int(fused(x).max()) + 1
    if solution.known is None:
        users.at([(x, np.zeros_like(x))])
    else:
        users.known[None] = [solution.known]
    proposed = proposals(solution)
    tasks = [Task(Clusters(labels)) for labels in proposed]
    tasks += [Task(Parts(labels, lam, edges)) for labels in proposed]
    found = users.solve(tasks, EXACT_GAP, READING_EXCHANGES, partial(known_enough, proposed))
    refits, fits = found[: len(proposed)], found[len(proposed) :]
    exact = [
        fit.gap <= EXACT_GAP and apart(fit.x, own) for fit, own in zip(fits, proposed, strict=True)
    ]
    at = exact.index(True) if any(exact) else 0
    labels, refit, gap = proposed[at], refits[at], fits[at].gap
    reading = Reading(labels.tolist(), distinct, bool(exact[at]), gap)
    if reading.joined:
        reading = replace(reading, not_refitted=missing(refit, labels))
    if edges.complete:
        reading = bounded(reading, users, labels, fits[at].x)
    return reading, refit.x


def tied(solution: Solution) -> bool:
    """True if a penalty joins users."""
    return solution.penalty.lam > 0 and len(solution.penalty.edges) > 0


def untied(users: Batched, solution: Solution) -> tuple[Reading, Floats]:
    """The same where no penalty joins anybody: users with equal models are one cluster.

    They are equal if their clusters' own models are as good as each user's own.
    """
    x, alone = solution.models, np.arange(len(solution.models))
    users.local([None])
    users.at([(x, np.zeros_like(x))])
    proposed = [*islice(candidates(x), CANDIDATES), alone]
    found = users.solve(
        [Task(Clusters(labels)) for labels in proposed], EXACT_GAP, READING_EXCHANGES
    )
    least = found[-1].value
    gaps = [(each.value - least) / max(abs(least), BEST) for each in found]
    exact = [gap <= EXACT_GAP for gap in gaps]
    at = exact.index(True)
    labels, refit = proposed[at], found[at]
    sure = exact[at] and (refit.gap <= EXACT_GAP)
    reading = Reading(labels.tolist(), int(fused(x).max()) + 1, sure or None)
    return replace(reading, not_refitted=missing(refit, labels)), refit.x


def known_enough(proposed: list[Ints], runs: Sequence[Run]) -> bool:
    """True if it is known which clusters it is, and their own models are, if there are clusters."""
    refits, fits = runs[: len(proposed)], runs[len(proposed) :]
    if not all(run.steps for run in runs):
        return False
    exact = [
        fit.gap <= EXACT_GAP and fit.best is not None and apart(fit.best.x, own)
        for fit, own in zip(fits, proposed, strict=True)
    ]
    if not any(exact) and not all(fit.over(EXACT_GAP) for fit in fits):
        return False
    at = exact.index(True) if any(exact) else 0
    alone = int(proposed[at].max()) + 1 == len(proposed[at]) > 1
    return alone or refits[at].over(REFIT)


def proposals(solution: Solution) -> list[Ints]:
    """The clusters that expansions prove, the likeliest ones, and that everybody is alone."""
    x, alone = solution.models, np.arange(len(solution.models))
    proposed = list(islice(candidates(x), CANDIDATES))
    if solution.known is not None:
        near, penalty = solution.known, solution.penalty
        quadratic = models(near, near.y, LEAST_DAMPING)
        sure = proved(quadratic, unsolved(x, penalty.lam, penalty.edges), penalty.edges)
        if sure.partition_certified:
            proposed = [in_order(sure.labels), *proposed[: CANDIDATES - 1]]
    if not proposed or len(np.unique(fused(x))) == len(x):
        proposed.append(alone)
    return proposed


def missing(refit: Solved, labels: Ints) -> int:
    """The number of clusters without a best model of their own."""
    assert refit.slack is not None
    slack = np.zeros(int(labels.max()) + 1)
    np.add.at(slack, labels, np.maximum(refit.slack, 0.0))
    return int((~(slack <= BEST * max(refit.value, np.finfo(np.float64).tiny))).sum())


def bounded(reading: Reading, users: Batched, labels: Ints, x: Floats) -> Reading:
    """The reading with the bounds on lambda of section III: the gradients at all w_k at once."""
    w = np.stack([x[labels == k][0] for k in range(int(labels.max()) + 1)])
    points = [x, *(np.broadcast_to(own, x.shape).copy() for own in w)]
    found = users.at([(point, np.zeros_like(point)) for point in points])
    known = recovery.Known({p.tobytes(): e.gradient for p, e in zip(points, found, strict=True)})
    return with_bounds(reading, known, labels, w)
