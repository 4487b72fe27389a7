"""Async-AL2SGD+, Algorithm 2 of Lyu et al. 2022, iteration by iteration.

In iteration t, with theta_i, the estimate g_i and the steps as katyusha.py has them:

    theta_i = a_1 z_i + a_2 x_i + (1 - a_1 - a_2) y_i
    if xi_0 = 1:       g_i by (4.1) with thbar_j and thbar                         (global step)
    else if xi_j = 1:  g_i by (4.1) with thbar_j                        (step to the centre of j)
    else:              g_i by (4.1) with nabla f_il(theta_i) - nabla f_il(x_i)      (local step)
    y_i <- theta_i - eta g_i
    z_i <- b_1 z_i + (1 - b_1) theta_i + b_2/eta (y_i - theta_i)
    if xi' = 1:        x_i <- y_i, and nabla f_i(x_i), xbar_j, xbar are kept           (refresh)

`iterate` is this, line by line. A federation comes to the same with fewer messages, by the plans of
al2sgd_coalescing.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from corsage.core.arrays import Array, Bools
from corsage.solvers.known_clusters.coins.flips import Coins
from corsage.solvers.known_clusters.coins.katyusha import (
    KatyushaParameters,
    Rows,
    SampleGradient,
    begin,
    check,
    local_step,
    means_of,
    pull_step,
    refreshed,
)
from corsage.solvers.known_clusters.hierarchy import Gradient, Hierarchy

Watch = Callable[[int, Rows], object]
"""Sees (t, rows after t iterations), t >= 1."""


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
