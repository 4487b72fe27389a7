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
from corsage.solvers.known_clusters.variances.covariance import inverse


@dataclass(frozen=True)
class LaplaceSums:
    """Sums over users (or clusters) of E(x - centre)^2 by coordinate (k, d), and their number (k,).

    `squares` is (theta_ic - w_jc)^2, `spreads` the variance of theta_ic - w_jc given the data.
    """

    squares: Floats
    spreads: Floats
    users: Floats


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
    s = inverse(a, gamma)
    deviation = (s @ (b - (a @ centre[..., None])[..., 0])[..., None])[..., 0]
    pull = s @ a
    spread = np.diagonal(s + pull @ covariance @ pull.mT, axis1=-2, axis2=-1)
    parts = (np.square(deviation), spread, np.ones(len(b)))
    return LaplaceSums(*(by_cluster(part, cluster, k) for part in parts))


def laplace_variances(sums: LaplaceSums) -> Floats:
    """s_c^2 = mean[(theta_ic - w_jc)^2 + Var] by coordinate (d,), one for all clusters."""
    total = sums.squares + sums.spreads
    return np.asarray(total.sum(0) / sums.users.sum())
