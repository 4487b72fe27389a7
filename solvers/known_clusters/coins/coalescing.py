"""Aggregation steps of Lyu et al. 2022, Algorithm 1, run together in closed form.

Where gamma_i is the same in a cluster, steps to the centre leave the centre where it is, and global
steps move the centres among themselves: k vectors at the server. So a run of such steps is one
affine map theta_i <- factor_j theta_i + shift_j, and users hear of it only before their next local
step. Where gamma_i differs the centre moves too: the server replays the steps on the users' models,
or sums over the users say how. A_j, B_j and c_i are the rates of settings.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from corsage.core.arrays import Array
from corsage.solvers.known_clusters.coins.settings import Rates
from corsage.solvers.known_clusters.hierarchy import Hierarchy


class Affine(NamedTuple):
    """theta <- factor theta + shift: one map (a number, (d,)), or one a cluster ((k,), (k, d))."""

    factor: Array | float
    shift: Array

    def of(self, j: int) -> Affine:
        """The map of cluster j."""
        return Affine(float(np.asarray(self.factor)[j]), self.shift[j])

    def __call__(self, theta: Array) -> Array:
        """The models (u, d) of users that share the map."""
        return (self.factor * theta + self.shift).astype(theta.dtype)


# gamma_i is the same in a cluster.


def global_map(
    centres: Array, weights: Array, a: Array, b: Array, steps: int
) -> tuple[Array, Array, Array]:
    """`steps` global steps: factor (k,) and shift (k, d) of every cluster, and the new centres.

    A deviation from the centre shrinks by 1 - A_j - B_j a step; the centres (k, d) move towards
    the middle, m_j <- m_j - A_j (m_j - sum_l w_l m_l), where w_l (k,) are the weights of the
    middle, alpha_l G_l up to a factor (`Hierarchy.weights`).
    """
    factor, moved = (1 - a - b) ** steps, centres
    shares = weights / weights.sum()
    for _ in range(steps):
        moved = moved - a[:, None] * (moved - shares @ moved)
    return factor, moved - factor[:, None] * centres, moved


def within_map(centre: Array, c: float, steps: int) -> Affine:
    """`steps` steps to the centre (d,): theta_i <- centre + (1 - c)^steps (theta_i - centre)."""
    factor = (1 - c) ** steps
    return Affine(factor, (1 - factor) * centre)


def compose(first: Affine, then: Affine) -> Affine:
    """One map for two, one after the other."""
    factor = np.asarray(then.factor)
    return Affine(then.factor * first.factor, factor[..., None] * first.shift + then.shift)


# gamma_i differs in a cluster.


def global_step(theta: Array, hierarchy: Hierarchy, steps: Rates) -> Array:
    """Line 7: a step of all users (n, d) towards centre and middle."""
    centres, middle = hierarchy.means(theta)
    move = steps.middle[:, None] * (theta - middle)
    move += steps.centre[:, None] * (theta - centres[hierarchy.cluster])
    return np.asarray(theta - move, theta.dtype)


def replay_global(theta: Array, hierarchy: Hierarchy, rates: Rates, steps: int) -> Array:
    """`steps` global steps of all users (n, d), at a server that knows their models."""
    for _ in range(steps):
        theta = global_step(theta, hierarchy, rates)
    return theta


def replay_within(theta: Array, gamma: Array, c: Array, steps: int) -> Array:
    """`steps` steps to the centre of a cluster's users: theta (u, d), gamma_i and c_i (u,)."""
    if not c.any():
        return theta
    shares = gamma / gamma.sum()
    for _ in range(steps):
        theta = (theta - c[:, None] * (theta - shares @ theta)).astype(theta.dtype)
    return theta
