"""The variances of users and clusters by coordinate, for smooth losses that are no squares: EM.

The model is that of Lyu et al. 2022, (5.1), with any negative log likelihood f_i and variances
s_c^2, sb_c^2 of each coordinate c. A round's quadratics (Laplace's approximation: A_i the Hessian
at the present models, as in `newton_message`) say how far theta_i is from w_j, and how
sure that is. The mean over the users of the expected (theta_ic - w_jc)^2 is the next s_c^2; its
inverse is the next gamma of that coordinate. The same holds for clusters, around wbar.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.solvers.known_clusters.mixed_model import by_cluster
from corsage.solvers.known_clusters.variances.covariance import covariances, inverse


@dataclass(frozen=True)
class LaplaceSums:
    """Sums over users (or clusters) of E(x - centre)^2 by coordinate (k, d), and their number (k,).

    `squares` is (theta_ic - w_jc)^2, `spreads` the variance of theta_ic - w_jc given the data.
    """

    squares: Floats
    spreads: Floats
    users: Floats

    def __add__(self, other: LaplaceSums) -> LaplaceSums:
        return LaplaceSums(
            self.squares + other.squares, self.spreads + other.spreads, self.users + other.users
        )


def centre_covariance(p: Floats, lam: Floats) -> tuple[Floats, Floats]:
    """Covariances of w_j (k, d, d) and of wbar (d, d), given the data; lam is (k, d)."""
    if np.isinf(lam).any():
        return covariances(p, lam)[:2]
    tie = _diagonal(lam)
    m = np.linalg.inv(p + tie)
    top = np.asarray(np.linalg.pinv((tie @ m @ p).sum(0), hermitian=True), np.float64)
    return np.asarray(m + m @ tie @ top @ tie @ m), top


def laplace_sums(
    a: Floats,
    b: Floats,
    gamma: Floats,
    centre: Floats,
    covariance: Floats,
    cluster: Ints,
    k: int,
) -> LaplaceSums:
    """The sums of users with quadratics A, b and ties gamma (n, d), above 0, perhaps infinite.

    `centre` (n, d) and `covariance` (n, d, d) are of each user's w_j. With the clusters' P_j, q_j
    and lambda as users of one cluster whose centre is wbar, these are the sums for sb^2.
    """
    s = inverse(a, gamma) if np.isinf(gamma).any() else np.linalg.inv(a + _diagonal(gamma))
    deviation = (s @ (b - (a @ centre[..., None])[..., 0])[..., None])[..., 0]
    pull = s @ a
    spread = np.diagonal(s + pull @ covariance @ pull.mT, axis1=-2, axis2=-1)
    parts = (np.square(deviation), spread, np.ones(len(b)))
    return LaplaceSums(*(by_cluster(part, cluster, k) for part in parts))


def laplace_variances(sums: LaplaceSums, *, common: bool = True) -> Floats:
    """s_c^2 = mean[(theta_ic - w_jc)^2 + Var] by coordinate (k, d); all rows alike if `common`."""
    total, users = sums.squares + sums.spreads, sums.users[:, None]
    if common:
        return np.broadcast_to(total.sum(0) / users.sum(), total.shape)
    return np.asarray(total / users)


def _diagonal(values: Floats) -> Floats:
    """Diagonal matrices (..., d, d) of (..., d)."""
    return np.asarray(values[..., None] * np.eye(values.shape[-1]))
