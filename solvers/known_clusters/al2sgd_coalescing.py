"""Async-AL2SGD+, Algorithm 2 of Lyu et al. 2022, with its steps run together.

Algorithm 2 renews its anchors x_i after an iteration with probability rho, which every user takes
part in; this and the global steps are what clusters wait for (`plan`).

Aggregation steps in a row need no message where gamma_i is the same in a cluster: the means of z_i,
y_i, x_i and nabla f_i(x_i) over a cluster move as if they were a user (`cluster_rows`), so the
server steps on alone (`advance_means`) and notes the thbar_j and thbar on the way; users catch up
with them before their next local step (`catch_up`). Where gamma_i differs, the server needs the
users' rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from corsage.core.arrays import Array, Ints
from corsage.solvers.known_clusters.async_al2sgd import refresh_coin
from corsage.solvers.known_clusters.coins import Coin, Coins, Stretch, Walk, stretch
from corsage.solvers.known_clusters.hierarchy import Gradient, Hierarchy
from corsage.solvers.known_clusters.katyusha import (
    Parameters2,
    Rows,
    SampleGradient,
    Target,
    begin,
    check,
    local_step,
    means_of,
    pull_step,
    refreshed,
)

Local = Callable[[Rows, int, int], Rows]
"""Takes local steps from an iteration on, so many."""


@dataclass(frozen=True)
class Plan(Stretch):
    """A stretch that may end with a refresh of all anchors."""

    refresh: bool


def plan(coins: Coins, refresh: Coin, first: int, end: int | None) -> Plan:
    """The stretch that begins at `first`, cut after the first iteration with a refresh."""
    part = stretch(coins, first, end)
    renewals = np.flatnonzero(refresh.at(part.first, part.last))
    if len(renewals):
        part = stretch(coins, first, first + int(renewals[0]) + 1)
    return Plan(part.first, part.last, part.globals, part.walks, bool(len(renewals)))


def plans(coins: Coins, refresh: Coin, end: int) -> Iterator[Plan]:
    """All plans of a run of `end` iterations."""
    first = 0
    while first < end:
        part = plan(coins, refresh, first, end)
        yield part
        first = part.last


def cluster_rows(rows: Rows, hierarchy: Hierarchy) -> Rows:
    """The means of all users' z, y, x and slope over the clusters (k, d), float64.

    Where gamma_i is the same in a cluster they move as users with that gamma_i do.
    """
    z, y, x, slope = (hierarchy.centres(part) for part in (rows.z, rows.y, rows.x, rows.slope))
    oracle = rows.oracle.pick(hierarchy.order[hierarchy.starts])
    return Rows(z, y, x, slope, x, hierarchy.weights @ x, oracle)


def advance(
    rows: Rows, settings: Parameters2, steps: int, means: Callable[[Array], Target]
) -> tuple[Rows, list[Target]]:
    """Aggregation steps of rows that know their means of theta; those means one by one."""
    targets = []
    for _ in range(steps):
        theta = rows.theta(settings)
        targets.append(means(theta))
        rows = pull_step(rows, settings, theta, targets[-1])
    return rows, targets


def advance_means(
    rows: Rows, settings: Parameters2, steps: int, weights: Array | None
) -> tuple[Rows, list[Target]]:
    """The same of `cluster_rows`: global steps, given the middle's weights; else to centres."""
    return advance(
        rows, settings, steps, lambda theta: (theta, None if weights is None else weights @ theta)
    )


def catch_up(rows: Rows, settings: Parameters2, targets: Sequence[Target]) -> Rows:
    """Users of one cluster after the aggregation steps that went to these means."""
    for target in targets:
        rows = pull_step(rows, settings, rows.theta(settings), target)
    return rows


def run_coalesced(
    start: Array,
    gradient: Gradient,
    sample: SampleGradient | None,
    hierarchy: Hierarchy,
    settings: Parameters2,
    coins: Coins,
    iterations: int,
) -> Rows:
    """What `run_naive` gives, plan by plan."""
    check(settings, hierarchy)
    rows = begin(start, gradient, hierarchy, settings)
    for part in plans(coins, refresh_coin(coins, settings.rho), iterations):
        if hierarchy.even:
            servers, targets = advance_means(
                cluster_rows(rows, hierarchy), settings, part.globals, hierarchy.weights
            )
        else:
            rows, _ = advance(rows, settings, part.globals, partial(means_of, hierarchy))
        for j, walk in enumerate(part.walks):
            users = hierarchy.members(j)
            own, shares = rows.pick(users), hierarchy.shares[users]
            local = partial(_local_steps, settings, gradient, sample, users)
            t = part.first + part.globals
            if hierarchy.even:
                server, missed = servers.pick(np.array([j])), _of(targets, j)
                own = _even(own, server, missed, walk, shares, settings, local, t)
            else:
                own = _uneven(own, walk, shares, settings, local, t)
            rows = rows.put(users, own)
        rows = refreshed(rows, gradient, hierarchy) if part.refresh else rows
    return rows


def _even(
    own: Rows,
    server: Rows,
    missed: Sequence[Target],
    walk: Walk,
    shares: Array,
    settings: Parameters2,
    local: Local,
    t: int,
) -> Rows:
    """A cluster's walk from iteration t on, after the global steps it has missed."""
    for r, k in walk or ((0, 0),):
        server, more = advance_means(server, settings, r, None)
        own = local(catch_up(own, settings, [*missed, *more]), t + r, k)
        server, missed = replace(server, z=shares @ own.z, y=shares @ own.y), ()
        t += r + k
    return own


def _uneven(
    own: Rows, walk: Walk, shares: Array, settings: Parameters2, local: Local, t: int
) -> Rows:
    """The same where gamma_i differs: the server has the rows."""
    for r, k in walk:
        own, _ = advance(own, settings, r, lambda theta: (shares @ theta, None))
        own = local(own, t + r, k)
        t += r + k
    return own


def _local_steps(
    settings: Parameters2,
    gradient: Gradient,
    sample: SampleGradient | None,
    users: Ints,
    rows: Rows,
    first: int,
    count: int,
) -> Rows:
    """`count` local steps from iteration `first` on."""
    for t in range(first, first + count):
        rows = local_step(rows, settings, t, gradient, sample, users)
    return rows


def _of(targets: Sequence[Target], j: int) -> list[Target]:
    """What a cluster hears of the targets of global steps."""
    return [(centres[j], middle) for centres, middle in targets]
