"""Users in known clusters, and the objective that pulls them to their cluster and to the middle.

Lyu et al. 2022, (2.1), over models theta_i of n users in k known clusters I_j:

    F(theta) = sum_j sum_{i in I_j} f_i(theta_i) + (1 - alpha_j) gamma_i/2 |theta_i - thbar_j|^2
                                                 + alpha_j gamma_i/2 |theta_i - thbar|^2.

thbar_j is the gamma-weighted mean of cluster j, its centre; thbar, the middle, is the mean of all
users weighted by alpha_j gamma_i. With G_j = sum of gamma_i over I_j the two regularisers add up to

    1/2 sum_i gamma_i |theta_i - thbar_j|^2 + 1/2 sum_j alpha_j G_j |thbar_j - thbar|^2,

so F is convex for every alpha_j >= 0, and is (2.3) minimised over w_j and wbar, where
lambda_j = alpha_j G_j/(1 - alpha_j). Arrays are float64 or float32; sums are float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from corsage.core.arrays import Array, Ints
from corsage.core.errors import ModelError

Gradient = Callable[[Array, Ints], Array]
"""nabla f_i(theta_i) of some users: their rows (u, d), and their numbers (u,)."""


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """Users in clusters, and the strengths that pull them.

    Parameters
    ----------
    cluster : (n,) number of each user's cluster, 0 to k - 1; every cluster has a user.
    gamma : (n,) gamma_i >= 0, the strength of a user's pull.
    alpha : (k,) alpha_j >= 0, the share of the pull that goes to the middle.
    """

    cluster: Ints
    gamma: Array
    alpha: Array

    def __post_init__(self) -> None:
        cluster = np.asarray(self.cluster, np.int64)
        gamma = np.asarray(self.gamma, np.float64)
        alpha = np.asarray(self.alpha, np.float64)
        if cluster.ndim != 1 or gamma.shape != cluster.shape or alpha.ndim != 1:
            raise ModelError(
                f"hierarchy: cluster {cluster.shape}, gamma {gamma.shape}, alpha {alpha.shape}: "
                "one cluster and one gamma a user, one alpha a cluster are wanted."
            )
        if not np.array_equal(np.unique(cluster), np.arange(len(alpha))):
            raise ModelError(
                f"hierarchy: clusters must be numbered 0 to {len(alpha) - 1}, each with a user."
            )
        for name, values in (("gamma", gamma), ("alpha", alpha)):
            if not (np.isfinite(values).all() and (values >= 0).all()):
                raise ModelError(f"hierarchy: every {name} must be finite and at least 0.")
            object.__setattr__(self, name, values)
        object.__setattr__(self, "cluster", cluster)

    @property
    def n(self) -> int:
        """The number of users."""
        return len(self.cluster)

    @property
    def k(self) -> int:
        """The number of clusters."""
        return len(self.alpha)

    @cached_property
    def order(self) -> Ints:
        """The users, one cluster after the other."""
        return np.argsort(self.cluster, kind="stable")

    @cached_property
    def starts(self) -> Ints:
        """The places in `order` at which each cluster's users begin."""
        return np.searchsorted(self.cluster[self.order], np.arange(self.k))

    def members(self, j: int) -> Ints:
        """I_j, the users of cluster j."""
        end = self.starts[j + 1] if j + 1 < self.k else self.n
        return self.order[self.starts[j] : end]

    @cached_property
    def totals(self) -> Array:
        """G_j (k,)."""
        return np.bincount(self.cluster, self.gamma, self.k)

    @cached_property
    def strongest(self) -> Array:
        """The largest gamma_i of each cluster (k,)."""
        return np.maximum.reduceat(self.gamma[self.order], self.starts)

    @cached_property
    def even(self) -> bool:
        """True if gamma_i is the same for all users of a cluster."""
        return bool((self.gamma == self.strongest[self.cluster]).all())

    @cached_property
    def shares(self) -> Array:
        """gamma_i/G_j (n,): a user's weight in its centre; 1/|I_j| where all gamma_i are 0."""
        weights = np.where(self.totals[self.cluster] > 0, self.gamma, 1.0)
        return weights / np.bincount(self.cluster, weights, self.k)[self.cluster]

    @cached_property
    def weights(self) -> Array:
        """A centre's weight in the middle (k,), alpha_j G_j over their sum.

        Where all are 0 there is no middle in (2.1), as nothing is pulled to it: then G_j over
        their sum, and 1/k if these are 0 too.
        """
        for weights in (self.alpha * self.totals, self.totals):
            if weights.any():
                return np.asarray(weights / weights.sum())
        return np.full(self.k, 1 / self.k)

    def centres(self, theta: Array) -> Array:
        """thbar_j (k, d), float64, (2.2)."""
        rows = (self.shares[:, None] * theta)[self.order]
        return np.asarray(np.add.reduceat(rows, self.starts, axis=0))

    def means(self, theta: Array) -> tuple[Array, Array]:
        """The centres thbar_j (k, d) and the middle thbar (d,), (2.2), float64.

        thbar = sum_j alpha_j G_j thbar_j / sum_j alpha_j G_j: the last form of (2.2). The first one
        there leaves out G_j, and is the same only if all clusters have the same G_j.
        """
        centres = self.centres(theta)
        return centres, self.weights @ centres


def pulls(hierarchy: Hierarchy) -> tuple[Array, Array]:
    """(1 - alpha_j) gamma_i and alpha_j gamma_i (n,): the pulls to the centre and the middle."""
    alpha = hierarchy.alpha[hierarchy.cluster]
    return (1 - alpha) * hierarchy.gamma, alpha * hierarchy.gamma


def alpha_of(lam: ArrayLike, totals: ArrayLike) -> Array:
    """alpha_j = lambda_j/(lambda_j + G_j), Proposition 2.2; 1 where lambda_j is infinite."""
    lam, totals = np.broadcast_arrays(np.asarray(lam, np.float64), np.asarray(totals, np.float64))
    if not (lam >= 0).all():
        raise ModelError("lambda: every lambda_j must be at least 0 (inf: one cluster for all).")
    alpha = np.where(np.isinf(lam), 1.0, 0.0)
    usable = np.isfinite(lam) & (lam > 0)
    np.divide(lam, lam + totals, out=alpha, where=usable)
    return alpha
