"""Clusters of users that appear, from sums of rows with several outputs each.

The model is that of solvers/known_clusters/shared_rows.py, but nobody says whose w_j a user's is.
All is found from the users' sums:

1. Partitions are proposed by the sum of norms (Armacki et al. 2022, (3), pairs of near users only)
   over the users' models drawn to one centre, for a path of lam; and by average linkage of these.
2. Users move to the cluster that explains their rows best, until nobody does.
3. The partition of the largest likelihood is taken, in which a user's cluster is a draw of one of k
   (the classification likelihood of Celeux, Govaert 1992): -2 log L + 2 N log k. One cluster for
   all is a candidate like the others. The outputs of a label are not independent, as the model has
   them, and users were moved to where they fit: so clusters must be worth that code twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.solvers.convex_clustering.reading import in_order, linked
from corsage.solvers.convex_clustering.wide_prox import distances, neighbours, wide_prox
from corsage.solvers.known_clusters.shared_rows import (
    Level,
    Rows,
    Shared,
    absorbed,
    best_tau,
    deviance,
    drawn_to,
    fit,
    middle,
    pieces,
)

MOST = 8
"""Clusters there are at most."""
CODE = 4.0
"""What a user's cluster costs for each log k: the code, and as much again."""
NEAR = 10
"""Pairs of the sum of norms are those of which one is among the other's so many nearest."""
PATH = 6
"""Values of lam."""
MOVES = 20
"""Times that all users may move."""
FINAL = 2
"""Partitions whose variances are found anew."""


@dataclass(frozen=True)
class Groups:
    """The clusters, and how they came about.

    Parameters
    ----------
    labels : the cluster of each user (n,), numbered as they first appear.
    shared : the variances and centres.
    source : what proposed them.
    gain : by how much -2 log L + CODE N log k is below that of one cluster.
    """

    labels: Ints
    shared: Shared
    source: str
    gain: float


def groups(rows: Rows) -> Groups:
    """The clusters of the largest likelihood; one where more explain nothing."""
    n = len(rows.a)
    alone = np.zeros(n, np.int64)
    one = fit(rows, alone, 1)
    best = Groups(alone, one, "one", 0.0)
    if n < 3:
        return best
    level = every(rows, one.rho)
    models = drawn_to(rows.a, rows.b, one.rho, one.wbar).reshape(n, -1)
    seen: dict[bytes, tuple[float, str, Ints]] = {}
    for source, start in proposals(models):
        labels = settled(level, start, one)
        if labels.max() and labels.tobytes() not in seen:
            score = scored(level, labels, float(rows.records.sum()))
            seen[labels.tobytes()] = score, source, labels
    for _, source, labels in sorted(seen.values(), key=lambda found: found[0])[:FINAL]:
        k = int(labels.max()) + 1
        shared = fit(rows, labels, k)
        gain = one.deviance - shared.deviance - CODE * n * float(np.log(k))
        if gain > best.gain:
            best = Groups(labels, shared, source, gain)
    return best


def proposals(models: Floats) -> Iterator[tuple[str, Ints]]:
    """Partitions (n,) of models (n, P), and where they are from."""
    gaps = distances(models)
    weights = neighbours(models, min(NEAR, len(models) - 1))
    scale = float(np.median(gaps[weights > 0])) / weights.sum(1).mean()
    y = models
    for t in np.geomspace(0.03, 3.0, PATH) * scale:
        found = wide_prox(models, float(t), y, weights)
        y = found.rows
        if found.labels.max() < MOST:
            yield "sum of norms", in_order(found.labels)
    for k in range(2, min(MOST, len(models) - 1) + 1):
        yield "linkage", in_order(linked(models, k))


def every(rows: Rows, rho: float) -> Level:
    """P_i, q_i, yy_i and log det of each user."""
    some = pieces(len(rows.a))
    parts = [absorbed(rows.a[at], rows.b[at], rows.yy[at], rho) for at in some]
    return Level(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def total(level: Level, labels: Ints) -> Level:
    """Their sums over clusters."""
    k = int(labels.max()) + 1
    whole = Level(*(np.zeros((k, *part.shape[1:])) for part in level))
    for all_of, part in zip(whole, level, strict=True):
        np.add.at(all_of, labels, part)
    return whole


def settled(level: Level, labels: Ints, one: Shared) -> Ints:
    """The partition when every user is where its rows are explained best, w_j given."""
    for _ in range(MOVES):
        whole = total(level, labels)
        w = drawn_to(whole.p, whole.q, one.rho, one.wbar)
        cost = np.stack([costs(level, centre) for centre in w], 1)
        moved = in_order(np.argmin(cost, 1))
        if np.array_equal(moved, labels):
            break
        labels = moved
    return labels


def costs(level: Level, w: Floats) -> Floats:
    """w'P_i w - 2 w'q_i of each user."""
    return np.asarray(np.einsum("ndc,dc->n", level.p @ w - 2 * level.q, w))


def scored(level: Level, labels: Ints, records: float) -> float:
    """-2 log L + CODE N log k, the users' variance being that of one cluster."""
    whole = total(level, labels)
    found = deviance(middle(whole, best_tau(whole, records)), records)[0]
    return found + CODE * len(labels) * float(np.log(labels.max() + 1))
