"""Covariances of centres and users' models, given the data, in the units of the losses.

With the squared loss they are over sigma^2, and given the variances: those of best linear unbiased
prediction. With other losses they are Laplace's approximation, from Hessians.

For smooth losses that are no squares the variances s_c^2, sb_c^2 of each coordinate c are found by
EM, in the model of Lyu et al. 2022, (5.1). A round's quadratics (A_i the Hessian at the present
models, as in `newton_message`) say how far theta_i is from w_j, and how sure that is. The mean over
the users of the expected (theta_ic - w_jc)^2 is the next s_c^2; its inverse is the next gamma of
that coordinate. The same holds for clusters, around wbar.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.solvers.known_clusters.likelihood import cleaned
from corsage.solvers.known_clusters.mixed_model import by_cluster, shrunk
from corsage.solvers.known_clusters.spectra import Partial

FLAT_CURVATURE = 1e-10
"""A curvature below this, in units in which each coefficient's own is 1, is none."""


class Covariances(NamedTuple):
    """Of w_j (k, d, d), of wbar (d, d), and directions of wbar that data leave open (d, r)."""

    w: Floats
    wbar: Floats
    unknown: Floats


def covariances(p: Floats, lam: Floats) -> Covariances:
    """Of the centres from P_j (k, d, d) and lambda_j, as `mixed_model.centres` has it.

    With M_j = (P_j + lambda_j I)^-1: wbar has [sum lambda_j M_j P_j]^-1, and w_j that of its own
    data, M_j, and of what it takes over from wbar.
    """
    m = inverse(p, lam)
    total = shrunk(p, np.zeros(p.shape[:-1]), lam)[0].sum(0)
    top = _pinv(total)
    over = np.eye(p.shape[-1]) - m @ p
    return Covariances(np.asarray(m + over @ top @ over.mT), top, unknown(total))


def unknown(p: Floats) -> Floats:
    """The directions (d, r) in which a quadratic with this curvature (d, d) is flat."""
    length = np.sqrt(np.maximum(np.diagonal(p), 0.0))
    unit = 1 / np.where(length > 0, length, 1.0)
    values, vectors = np.linalg.eigh(unit[:, None] * p * unit)
    return np.asarray(unit[:, None] * cleaned(vectors[:, values <= FLAT_CURVATURE]))


def prediction(a: Floats, gamma: Floats, centre: Floats) -> tuple[Floats, Floats]:
    """Of theta_i - what it estimates (n, d, d), and the weight S A of a user's own data (n, d, d).

    `centre` (n, d, d) are the covariances of the users' centres.
    """
    s = inverse(a, gamma)
    own = s @ a
    over = np.eye(a.shape[-1]) - own
    return np.asarray(s + over @ centre @ over.mT), np.asarray(own)


def inverse(a: Floats, gamma: Floats) -> Floats:
    """(A + gamma I)^-1 (n, d, d): 0 for what is tied without end, A^+ where nothing is tied.

    gamma is one number, one for each (n,), or one for each and coordinate (n, d).
    """
    tie = np.asarray(gamma, np.float64)
    rows = np.broadcast_to(tie if tie.ndim == a.ndim - 1 else tie[..., None], a.shape[:-1])
    if not rows.any():
        return _pinv(a)
    with np.errstate(divide="ignore"):
        return Partial.of(a, np.zeros(a.shape[:-1]), 1 / np.sqrt(rows)).inverse()


def _pinv(a: Floats) -> Floats:
    return np.asarray(np.linalg.pinv(a, hermitian=True), np.float64)


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
    return np.asarray((sums.squares + sums.spreads).sum(0) / sums.users.sum())
