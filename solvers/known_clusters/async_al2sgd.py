"""Async-AL2SGD+, Algorithm 2 of Lyu et al. 2022, iteration by iteration.

`corsage.solvers.known_clusters.katyusha` has the settings and the single steps, `corsage.solvers.known_clusters.al2sgd_coalescing`
the same with its steps run together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from corsage.core.arrays import Array, Bools
from corsage.solvers.known_clusters.coins import Coin, Coins
from corsage.solvers.known_clusters.hierarchy import Gradient, Hierarchy
from corsage.solvers.known_clusters.katyusha import (
    Parameters2,
    Rows,
    SampleGradient,
    begin,
    check,
    local_step,
    means_of,
    parameters,
    pull_step,
    refreshed,
)

__all__ = [
    "Faces",
    "Parameters2",
    "Rows",
    "begin",
    "check",
    "iterate",
    "parameters",
    "refresh_coin",
    "run_naive",
]

Watch = Callable[[int, Rows], object]
"""Sees (t, rows after t iterations), t >= 1."""


def refresh_coin(coins: Coins, rho: float) -> Coin:
    """The coin xi' of a run."""
    return Coin(coins.seed, rho, ("refresh coins",))


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
    settings: Parameters2,
    t: int,
    faces: Faces,
) -> Rows:
    """All users (n, d) after iteration t."""
    theta = rows.theta(settings)
    near, middle = means_of(hierarchy, theta)
    if faces.xi_0:
        rows = pull_step(rows, settings, theta, (near, middle))
    else:
        toward = faces.xi[hierarchy.cluster]
        drawn, users = np.flatnonzero(toward), np.flatnonzero(~toward)
        pulled = pull_step(rows.pick(drawn), settings, theta[drawn], (near[drawn], None))
        local = local_step(rows.pick(users), settings, t, gradient, sample, users)
        rows = rows.put(drawn, pulled).put(users, local)
    return refreshed(rows, gradient, hierarchy) if faces.refresh else rows


def run_naive(
    start: Array,
    gradient: Gradient,
    sample: SampleGradient | None,
    hierarchy: Hierarchy,
    settings: Parameters2,
    coins: Coins,
    iterations: int,
    each: Watch | None = None,
) -> Rows:
    """All users after T single iterations; their models are `y`."""
    check(settings, hierarchy)
    xi_0, xi = coins.network_at(0, iterations), coins.clusters_at(0, iterations)
    renewals = refresh_coin(coins, settings.rho).at(0, iterations)
    rows = begin(start, gradient, hierarchy, settings)
    for t in range(iterations):
        faces = Faces(bool(xi_0[t]), xi[:, t], bool(renewals[t]))
        rows = iterate(rows, gradient, sample, hierarchy, settings, t, faces)
        if each is not None:
            each(t + 1, rows)
    return rows
