"""Async-L2GD, Algorithm 1 of Lyu et al. 2022, step by step and with its steps run together.

An iteration moves theta by one of three steps, as the coins say; each is eta times the oracle
(3.2) for the gradient of (2.1). For user i of cluster j:

    global:   theta_i -= A_i (theta_i - thbar) + B_i (theta_i - thbar_j)
    centre:   theta_i -= c_i (theta_i - thbar_j)
    local:    theta_i -= eta/((1 - p_0)(1 - p_j)) nabla f_i(theta_i)

    A_i = eta gamma_i alpha_j/p_0,  B_i = eta gamma_i tau_j (1 - alpha_j)/p_0,
    c_i = eta gamma_i (1 - tau_j)(1 - alpha_j)/((1 - p_0) p_j).

`run_coalesced` gives what `run_naive` gives, with far fewer messages: a run of aggregation steps is
one map (coalescing.py), and users hear of it only before their next local step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from corsage.core.arrays import Array, Bools, Ints
from corsage.solvers.known_clusters.coalescing import (
    Affine,
    compose,
    global_map,
    global_step,
    replay_global,
    within_map,
    within_unequal,
)
from corsage.solvers.known_clusters.coins import Coins, Walk, stretches
from corsage.solvers.known_clusters.hierarchy import Gradient, Hierarchy
from corsage.solvers.known_clusters.settings import Parameters, Rates, check, rates

Watch = Callable[[int, Array], object]
"""Sees (t, theta^t) after every iteration, t >= 1."""
Local = Callable[[Array, int], Array]
"""Takes so many local steps."""


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


def run_coalesced(
    start: Array,
    gradient: Gradient,
    hierarchy: Hierarchy,
    parameters: Parameters,
    coins: Coins,
    iterations: int,
) -> Array:
    """theta^T (n, d), stretch by stretch; clusters meet in the global steps alone."""
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
            local = partial(_local_steps, gradient, users, steps.local[j])
            if hierarchy.even:
                shares, c = hierarchy.shares[users], of_clusters.within[j]
                before = Affine(factor[j], shift[j])
                theta[users] = _even(theta[users], walk, before, centres[j], shares, c, local)
            else:
                gamma, c = hierarchy.gamma[users], steps.within[users]
                theta[users] = _uneven(theta[users], walk, gamma, c, local)
    return theta


def _even(
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


def _uneven(theta: Array, walk: Walk, gamma: Array, c: Array, local: Local) -> Array:
    """The same where gamma_i differs."""
    for r, k in walk:
        theta = local(within_unequal(theta, gamma, c, r), k)
    return theta


def _local_steps(gradient: Gradient, users: Ints, rate: float, theta: Array, count: int) -> Array:
    """`count` steps of size `rate` of the users (u, d)."""
    for _ in range(count):
        theta = (theta - rate * gradient(theta, users)).astype(theta.dtype)
    return theta
