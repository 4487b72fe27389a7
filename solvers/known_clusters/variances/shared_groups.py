"""Clusters of users that appear, from sums of rows with several outputs each.

The model is that of shared_rows.py, but nobody says whose w_j a user's is.
All is found from the users' sums:

1. Partitions are proposed from the users' models drawn to one centre (the sum of norms and linkage:
   solvers/convex_clustering/proposals.py).
2. Users move to the cluster that explains their rows best, until nobody does.
3. The partition of the largest likelihood is taken, in which a user's cluster is a draw of one of k
   (the classification likelihood of Celeux, Govaert 1992): -2 log L + 2 N log k. One cluster for
   all is a candidate like the others. The outputs of a label are not independent, as the model has
   them, and users were moved to where they fit: so clusters must be worth that code twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.solvers.known_clusters.variances.shared_rows import (
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

CODE = 4.0
"""The cost of a user's cluster for each log k: the code, and as much again."""
MOST_MOVES = 20
"""Times that all users may move."""
REFITTED = 2
"""Partitions whose variances are found anew."""


Propose = Callable[[Floats], Iterable[tuple[str, Ints]]]
"""Partitions (n,) of models (n, P), and where they are from."""


@dataclass(frozen=True)
class Groups:
    """The clusters, and how they came about.

    Parameters
    ----------
    labels : the cluster of each user (n,), numbered from 0 on.
    shared : the variances and centres.
    source : what proposed them.
    gain : by how much -2 log L + CODE N log k is below that of one cluster.
    """

    labels: Ints
    shared: Shared
    source: str
    gain: float


def groups(rows: Rows, propose: Propose) -> Groups:
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
    for source, start in propose(models):
        labels = settled(level, start, one)
        if labels.max() and labels.tobytes() not in seen:
            score = scored(level, labels, float(rows.records.sum()))
            seen[labels.tobytes()] = score, source, labels
    for _, source, labels in sorted(seen.values(), key=lambda found: found[0])[:REFITTED]:
        k = int(labels.max()) + 1
        shared = fit(rows, labels, k)
        gain = one.deviance - shared.deviance - CODE * n * float(np.log(k))
        if gain > best.gain:
            best = Groups(labels, shared, source, gain)
    return best


def every(rows: Rows, rho: float) -> Level:
    """P_i, q_i, yy_i and log det of each user."""
    some = pieces(len(rows.a))
    parts = [absorbed(rows.a[at], rows.b[at], rows.yy[at], rho) for at in some]
    return Level(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def total(level: Level, labels: Ints) -> Level:
    """Their sums over clusters."""
    member = (np.arange(int(labels.max()) + 1)[:, None] == labels).astype(np.float64)
    return Level(*(np.tensordot(member, part, 1) for part in level))


def settled(level: Level, labels: Ints, one: Shared) -> Ints:
    """The partition when every user is where its rows are explained best, w_j given."""
    for _ in range(MOST_MOVES):
        whole = total(level, labels)
        w = drawn_to(whole.p, whole.q, one.rho, one.wbar)
        cost = np.stack([costs(level, centre) for centre in w], 1)
        moved = np.unique(np.argmin(cost, 1), return_inverse=True)[1].ravel()
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
