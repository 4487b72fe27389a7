"""Algorithms 1 and 2 of Lyu et al. 2022 on one machine, with their steps run together.

What needs no message is taken at once, as a federation does; the result is that of the loops in
solvers/known_clusters, iteration by iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from corsage.core.arrays import Array, Ints
from corsage.solvers.known_clusters.coins import katyusha
from corsage.solvers.known_clusters.coins.al2sgd_coalescing import (
    advance,
    advance_means,
    catch_up,
    plan,
)
from corsage.solvers.known_clusters.coins.coalescing import (
    Affine,
    compose,
    global_map,
    replay_global,
    replay_within,
    within_map,
)
from corsage.solvers.known_clusters.coins.flips import Coin, Coins, Stretch, Walk, stretches
from corsage.solvers.known_clusters.coins.katyusha import (
    KatyushaParameters,
    Rows,
    SampleGradient,
    Target,
    begin,
    local_step,
    means_of,
    refreshed,
)
from corsage.solvers.known_clusters.coins.settings import Parameters, check, rates
from corsage.solvers.known_clusters.hierarchy import Gradient, Hierarchy

Local = Callable[[Array, int], Array]
"""Takes so many local steps."""
LocalSteps = Callable[[Rows, int, int], Rows]
"""Takes local steps from an iteration on, so many."""


def l2gd_together(
    start: Array,
    gradient: Gradient,
    hierarchy: Hierarchy,
    parameters: Parameters,
    coins: Coins,
    iterations: int,
) -> Array:
    """What `async_l2gd.run_naive` gives, stretch by stretch."""
    check(parameters, hierarchy)
    theta, steps = start.copy(), rates(hierarchy, parameters)
    of_clusters = steps.of_clusters(hierarchy)
    for part in stretches(coins, iterations):
        if hierarchy.even:
            a, b = of_clusters.middle, of_clusters.centre
            now = hierarchy.centres(theta)
            factor, shift, centres = global_map(now, hierarchy.weights, a, b, part.globals)
        else:
            theta = replay_global(theta, hierarchy, steps, part.globals)
        for j, walk in enumerate(part.walks):
            users = hierarchy.members(j)
            local = partial(_l2gd_steps, gradient, users, steps.local[j])
            if hierarchy.even:
                shares, c = hierarchy.shares[users], of_clusters.within[j]
                before = Affine(factor[j], shift[j])
                theta[users] = _l2gd_even(theta[users], walk, before, centres[j], shares, c, local)
            else:
                gamma, c = hierarchy.gamma[users], steps.within[users]
                theta[users] = _l2gd_uneven(theta[users], walk, gamma, c, local)
    return theta


def _l2gd_even(
    theta: Array,
    walk: Walk,
    before: Affine,
    centre: Array,
    shares: Array,
    c: float,
    local: Local,
) -> Array:
    """A cluster's walk after the map `before`, which brings its centre to `centre`."""
    for r, k in walk or ((0, 0),):
        theta = local(compose(before, within_map(centre, c, r))(theta), k)
        before, centre = Affine(1.0, np.zeros_like(centre)), shares @ theta
    return theta


def _l2gd_uneven(theta: Array, walk: Walk, gamma: Array, c: Array, local: Local) -> Array:
    """The same where gamma_i differs."""
    for r, k in walk:
        theta = local(replay_within(theta, gamma, c, r), k)
    return theta


def _l2gd_steps(gradient: Gradient, users: Ints, rate: float, theta: Array, count: int) -> Array:
    """`count` steps of size `rate` of the users (u, d)."""
    for _ in range(count):
        theta = (theta - rate * gradient(theta, users)).astype(theta.dtype)
    return theta


def plans(coins: Coins, refresh: Coin, end: int) -> Iterator[Stretch]:
    """All of these of a run of `end` iterations."""
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


def al2sgd_together(
    start: Array,
    gradient: Gradient,
    sample: SampleGradient | None,
    hierarchy: Hierarchy,
    settings: KatyushaParameters,
    coins: Coins,
    iterations: int,
) -> Rows:
    """What `async_al2sgd.run_naive` gives, plan by plan."""
    katyusha.check(settings, hierarchy)
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
    local: LocalSteps,
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
    own: Rows, walk: Walk, shares: Array, settings: KatyushaParameters, local: LocalSteps, t: int
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
