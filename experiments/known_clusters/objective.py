"""The objectives (2.1) and (2.3) of Lyu et al. 2022 as numbers, and their strengths compared."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from corsage.core.arrays import Array, Ints
from corsage.core.errors import ModelError
from corsage.solvers.known_clusters.hierarchy import Hierarchy, pulls


def penalty(theta: Array, hierarchy: Hierarchy) -> float:
    """The two regularisers of (2.1), as a sum of terms that are not negative."""
    centres, middle = hierarchy.means(theta)
    inner = hierarchy.gamma @ np.square(theta - centres[hierarchy.cluster]).sum(1)
    outer = (hierarchy.alpha * hierarchy.totals) @ np.square(centres - middle).sum(1)
    return float(inner + outer) / 2


def penalty_gradient(theta: Array, hierarchy: Hierarchy) -> Array:
    """The gradient of the two regularisers (n, d), Proposition 3.1."""
    centres, middle = hierarchy.means(theta)
    inner, outer = pulls(hierarchy)
    near, far = theta - centres[hierarchy.cluster], theta - middle
    return np.asarray(inner[:, None] * near + outer[:, None] * far, theta.dtype)


def objective_21(losses: Array, theta: Array, hierarchy: Hierarchy) -> float:
    """F(theta), (2.1), from the users' losses f_i(theta_i) (n,)."""
    return float(np.sum(losses, dtype=np.float64)) + penalty(theta, hierarchy)


def objective_23(
    losses: Array,
    theta: Array,
    w: Array,
    wbar: Array,
    gamma: Array,
    lam: Array,
    cluster: Ints,
) -> float:
    """F_MTL(theta, w, wbar), (2.3); where lambda_j is infinite, w_j other than wbar costs inf."""
    inner = gamma @ np.square(theta - w[cluster]).sum(1)
    gaps = np.square(w - wbar).sum(1)
    outer = np.where(gaps > 0, lam, 0.0) @ gaps if np.isfinite(lam[gaps > 0]).all() else np.inf
    return float(np.sum(losses, dtype=np.float64)) + float(inner + outer) / 2


def lambda_of(alpha: ArrayLike, totals: ArrayLike) -> Array:
    """lambda_j = alpha_j G_j/(1 - alpha_j); infinite where alpha_j = 1."""
    alpha, totals = np.broadcast_arrays(
        np.asarray(alpha, np.float64), np.asarray(totals, np.float64)
    )
    if not ((alpha >= 0) & (alpha <= 1)).all():
        raise ModelError(
            "alpha: (2.3) has a lambda_j only for 0 <= alpha_j <= 1: lower alpha, or use (2.1)."
        )
    lam = np.full(alpha.shape, np.inf)
    np.divide(alpha * totals, 1 - alpha, out=lam, where=alpha < 1)
    return lam
