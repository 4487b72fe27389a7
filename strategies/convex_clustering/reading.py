"""The clusters of a solution, read, certified and refitted in a handful of exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.strategies.convex_clustering.report import Reading, Solved

if TYPE_CHECKING:
    from corsage.solvers.convex_clustering.batched import Batched
    from corsage.solvers.convex_clustering.runs import Run
    from corsage.solvers.convex_clustering.runs import Solved as Answer

MOST = 12
"""Exchanges that the clusters' models take at most."""
REFIT = 1e-7
"""The relative gap of the clusters' own models."""
BEST = 1e-6
"""A cluster's share of a relative gap that says that its model is the best."""


def quickly_read(users: Batched, solved: Solved) -> tuple[Reading, Floats]:
    """The clusters, whether they are exact, the bounds on lambda, and their own models (N, d)."""
    from corsage.solvers.convex_clustering.couplings import Clusters, Parts
    from corsage.solvers.convex_clustering.reading import EXACT, fused
    from corsage.solvers.convex_clustering.runs import Task

    choice, edges, x = solved.choice, solved.graph.edges, solved.models
    if not tied(solved):
        return untied(users, solved)
    distinct = int(fused(x).max()) + 1
    if solved.known is None:
        users.at([(x, np.zeros_like(x))])
    else:
        users.known[None] = [solved.known]
    proposed = proposals(solved)
    tasks = [Task(Clusters(labels)) for labels in proposed]
    tasks += [Task(Parts(labels, choice.lam, edges)) for labels in proposed]
    found = users.solve(tasks, EXACT, MOST, partial(known_enough, proposed))
    refits, fits = found[: len(proposed)], found[len(proposed) :]
    exact = [
        fit.gap <= EXACT and apart(fit.x, own) for fit, own in zip(fits, proposed, strict=True)
    ]
    at = exact.index(True) if any(exact) else 0
    labels, refit, gap = proposed[at], refits[at], fits[at].gap
    reading = Reading(labels.tolist(), distinct, bool(exact[at]), gap)
    if reading.joined:
        reading = replace(reading, not_refitted=missing(refit, labels))
    if edges.complete:
        reading = bounded(reading, users, labels, fits[at].x)
    return reading, refit.x


def tied(solved: Solved) -> bool:
    """Whether a penalty joins users."""
    return solved.choice.lam > 0 and len(solved.graph.edges) > 0


def untied(users: Batched, solved: Solved) -> tuple[Reading, Floats]:
    """The same where no penalty joins anybody: users with equal models are one cluster.

    They are equal if their clusters' own models are as good as each user's own.
    """
    from corsage.solvers.convex_clustering.couplings import Clusters
    from corsage.solvers.convex_clustering.reading import EXACT, TRIES, candidates, fused
    from corsage.solvers.convex_clustering.runs import Task

    x, alone = solved.models, np.arange(len(solved.models))
    users.local([None])
    users.at([(x, np.zeros_like(x))])
    proposed = [*islice(candidates(x), TRIES), alone]
    if solved.choice.labels is not None:
        proposed = [np.array(solved.choice.labels), alone]
    found = users.solve([Task(Clusters(labels)) for labels in proposed], EXACT, MOST)
    least = found[-1].value
    gaps = [(each.value - least) / max(abs(least), BEST) for each in found]
    exact = [gap <= EXACT for gap in gaps]
    at = 0 if solved.choice.labels is not None else exact.index(True)
    labels, refit = proposed[at], found[at]
    sure = exact[at] and (refit.gap <= EXACT)
    reading = Reading(labels.tolist(), int(fused(x).max()) + 1, sure or None)
    return replace(reading, not_refitted=missing(refit, labels)), refit.x


def known_enough(proposed: list[Ints], runs: Sequence[Run]) -> bool:
    """Whether it is known which clusters it is, and their own models are, if there are clusters."""
    from corsage.solvers.convex_clustering.reading import EXACT

    refits, fits = runs[: len(proposed)], runs[len(proposed) :]
    if not all(run.steps for run in runs):
        return False
    exact = [
        fit.gap <= EXACT and fit.best is not None and apart(fit.best.x, own)
        for fit, own in zip(fits, proposed, strict=True)
    ]
    if not any(exact) and not all(fit.over(EXACT) for fit in fits):
        return False
    at = exact.index(True) if any(exact) else 0
    alone = int(proposed[at].max()) + 1 == len(proposed[at]) > 1
    return alone or refits[at].over(REFIT)


def proposals(solved: Solved) -> list[Ints]:
    """The clusters that were chosen; else the likeliest ones, and that everybody is alone."""
    from corsage.solvers.convex_clustering.reading import TRIES, candidates, fused

    if solved.choice.labels is not None:
        return [np.array(solved.choice.labels)]
    x, alone = solved.models, np.arange(len(solved.models))
    proposed = list(islice(candidates(x), TRIES))
    if not proposed or len(np.unique(fused(x))) == len(x):
        proposed.append(alone)
    return proposed


def apart(x: Floats, labels: Ints) -> bool:
    """Whether no two clusters have the same model."""
    from corsage.solvers.convex_clustering.reading import fused

    return bool(fused(x, 1e-7).max() == labels.max())


def missing(refit: Answer, labels: Ints) -> int:
    """How many clusters have no best model of their own."""
    assert refit.slack is not None
    slack = np.zeros(int(labels.max()) + 1)
    np.add.at(slack, labels, np.maximum(refit.slack, 0.0))
    return int((~(slack <= BEST * max(refit.value, np.finfo(np.float64).tiny))).sum())


def bounded(reading: Reading, users: Batched, labels: Ints, x: Floats) -> Reading:
    """The reading with the bounds on lambda of section III: the gradients at all w_k at once."""
    from corsage.solvers.convex_clustering import recovery

    w = np.stack([x[labels == k][0] for k in range(int(labels.max()) + 1)])
    points = [x, *(np.broadcast_to(own, x.shape).copy() for own in w)]
    found = users.at([(point, np.zeros_like(point)) for point in points])
    known = recovery.Known({p.tobytes(): e.gradient for p, e in zip(points, found, strict=True)})
    return replace(
        reading,
        necessary=recovery.necessary(known, labels, w),
        theorem1=recovery.theorem1(known, labels, w),
        theorem2=recovery.theorem2(known, labels, w) if len(w) > 1 else None,
    )
