"""Async-AL2SGD+, Algorithm 2 of Lyu et al. 2022, iteration by iteration and with steps together.

In iteration t, with theta_i, the estimate g_i and the steps as katyusha.py has them:

    theta_i = a_1 z_i + a_2 x_i + (1 - a_1 - a_2) y_i
    if xi_0 = 1:       g_i by (4.1) with thbar_j and thbar                         (global step)
    else if xi_j = 1:  g_i by (4.1) with thbar_j                        (step to the centre of j)
    else:              g_i by (4.1) with nabla f_il(theta_i) - nabla f_il(x_i)      (local step)
    y_i <- theta_i - eta g_i
    z_i <- b_1 z_i + (1 - b_1) theta_i + b_2/eta (y_i - theta_i)
    if xi' = 1:        x_i <- y_i, and nabla f_i(x_i), xbar_j, xbar are kept           (refresh)

`iterate` is this, line by line. `run_coalesced` gives the same with fewer messages, by the plans of
al2sgd_coalescing.py: it is what a federation does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from corsage.core.arrays import Array, Bools, Ints
from corsage.solvers.known_clusters.al2sgd_coalescing import (
    advance,
    advance_means,
    catch_up,
    cluster_rows,
    plans,
)
from corsage.solvers.known_clusters.coins import Coins, Walk
from corsage.solvers.known_clusters.hierarchy import Gradient, Hierarchy
from corsage.solvers.known_clusters.katyusha import (
    KatyushaParameters,
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

Watch = Callable[[int, Rows], object]
"""Sees (t, rows after t iterations), t >= 1."""
Local = Callable[[Rows, int, int], Rows]
"""Takes local steps from an iteration on, so many."""


class Faces(NamedTuple):
    """The coins of an iteration: xi_0, xi_j of the clusters (k,), and xi'."""

    xi_0: bool
    xi: Bools
    refresh: bool


def iterate(
    rows: Rows,
    gradient: Gradient,
    sample: SampleGradient | None,
    hierarchy: Hierarchy,
    settings: KatyushaParameters,
    t: int,
    faces: Faces,
) -> Rows:
    """All users (n, d) after iteration t."""
    theta = rows.theta(settings)
    centres, middle = means_of(hierarchy, theta)  # thbar_j of each user, thbar
    if faces.xi_0:
        rows = pull_step(rows, settings, theta, (centres, middle))
    else:  # clusters with xi_j = 1 go to their centres, the users of all others do local steps
        toward = faces.xi[hierarchy.cluster]
        drawn, users = np.flatnonzero(toward), np.flatnonzero(~toward)
        pulled = pull_step(rows.pick(drawn), settings, theta[drawn], (centres[drawn], None))
        local = local_step(rows.pick(users), settings, t, gradient, sample, users)
        rows = rows.put(drawn, pulled).put(users, local)
    return refreshed(rows, gradient, hierarchy) if faces.refresh else rows


def run_naive(
    start: Array,
    gradient: Gradient,
    sample: SampleGradient | None,
    hierarchy: Hierarchy,
    settings: KatyushaParameters,
    coins: Coins,
    iterations: int,
    each: Watch | None = None,
) -> Rows:
    """All users after T single iterations; their models are `y`."""
    check(settings, hierarchy)
    xi_0, xi = coins.network_at(0, iterations), coins.clusters_at(0, iterations)
    renewals = coins.refresh_coin(settings.rho).at(0, iterations)
    rows = begin(start, gradient, hierarchy, settings)
    for t in range(iterations):
        faces = Faces(bool(xi_0[t]), xi[:, t], bool(renewals[t]))
        rows = iterate(rows, gradient, sample, hierarchy, settings, t, faces)
        if each is not None:
            each(t + 1, rows)
    return rows


# Together.


def run_coalesced(
    start: Array,
    gradient: Gradient,
    sample: SampleGradient | None,
    hierarchy: Hierarchy,
    settings: KatyushaParameters,
    coins: Coins,
    iterations: int,
) -> Rows:
    """What `run_naive` gives, plan by plan."""
    check(settings, hierarchy)
    rows = begin(start, gradient, hierarchy, settings)
    for part in plans(coins, coins.refresh_coin(settings.rho), iterations):
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
    settings: KatyushaParameters,
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
    own: Rows, walk: Walk, shares: Array, settings: KatyushaParameters, local: Local, t: int
) -> Rows:
    """The same where gamma_i differs: the server has the rows."""
    for r, k in walk:
        own, _ = advance(own, settings, r, lambda theta: (shares @ theta, None))
        own = local(own, t + r, k)
        t += r + k
    return own


def _local_steps(
    settings: KatyushaParameters,
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
