"""Async-L2GD, Algorithm 1 of Lyu et al. 2022, step by step.

An iteration moves theta by one of three steps, as the coins say; each is eta times the oracle
(3.2) for the gradient of (2.1). For user i of cluster j:

    global:   theta_i -= A_i (theta_i - thbar) + B_i (theta_i - thbar_j)
    centre:   theta_i -= c_i (theta_i - thbar_j)
    local:    theta_i -= eta/((1 - p_0)(1 - p_j)) nabla f_i(theta_i)

    A_i = eta gamma_i alpha_j/p_0,  B_i = eta gamma_i tau_j (1 - alpha_j)/p_0,
    c_i = eta gamma_i (1 - tau_j)(1 - alpha_j)/((1 - p_0) p_j).

A federation comes to the same with far fewer messages: a run of aggregation steps is one map
(coalescing.py), and users hear of it only before their next local step.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from corsage.core.arrays import Array, Bools
from corsage.solvers.known_clusters.coins.coalescing import global_step
from corsage.solvers.known_clusters.coins.flips import Coins
from corsage.solvers.known_clusters.coins.settings import Parameters, Rates, check, rates
from corsage.solvers.known_clusters.hierarchy import Gradient, Hierarchy

Watch = Callable[[int, Array], object]
"""Sees (t, theta^t) after every iteration, t >= 1."""


def iterate(
    theta: Array,
    gradient: Gradient,
    hierarchy: Hierarchy,
    parameters: Parameters,
    xi_0: bool,
    xi: Bools,
) -> Array:
    """theta^{t+1} (n, d) from theta^t and the coins xi_0, xi_j (k,): lines 4 to 18."""
    return _iterate(theta, gradient, hierarchy, rates(hierarchy, parameters), xi_0, xi)


def _iterate(
    theta: Array, gradient: Gradient, hierarchy: Hierarchy, steps: Rates, xi_0: bool, xi: Bools
) -> Array:
    """The same from the rates."""
    if xi_0:
        return global_step(theta, hierarchy, steps)
    toward = xi[hierarchy.cluster]
    centres = hierarchy.centres(theta)[hierarchy.cluster[toward]]
    after = theta.copy()
    after[toward] -= steps.within[toward, None] * (theta[toward] - centres)
    users = np.flatnonzero(~toward)
    local = steps.local[hierarchy.cluster[users], None]
    after[users] -= (local * gradient(theta[users], users)).astype(theta.dtype)
    return np.asarray(after)


def run_naive(
    start: Array,
    gradient: Gradient,
    hierarchy: Hierarchy,
    parameters: Parameters,
    coins: Coins,
    iterations: int,
    each: Watch | None = None,
) -> Array:
    """theta^T (n, d) by T single iterations."""
    check(parameters, hierarchy)
    xi_0, xi = coins.network_at(0, iterations), coins.clusters_at(0, iterations)
    theta, steps = start, rates(hierarchy, parameters)
    for t in range(iterations):
        theta = _iterate(theta, gradient, hierarchy, steps, bool(xi_0[t]), xi[:, t])
        if each is not None:
            each(t + 1, theta)
    return theta
