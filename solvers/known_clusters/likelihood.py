"""The restricted likelihood of users in clusters, from sums over each cluster's users.

The hierarchical linear model of Lyu et al. 2022, (5.1), with one noise variance for all records:

    w_j ~ N(wbar, sb^2 I),    theta_i ~ N(w_j, s_j^2 I),    y_i ~ N(X_i theta_i, sigma^2 I),

and a flat wbar. Everything is in units of sigma^2: rho_j = s_j^2/sigma^2, tau = sb^2/sigma^2. Users
and clusters are integrated out by the same formulas (columns.py), sigma^2 is always the best one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from corsage.core.arrays import Floats
from corsage.solvers.known_clusters.lanes import WIDEST

WINDOW = 8
"""So many neighbours on the grid of rho say what the sums are between them."""
SINGULAR = 1e-12
"""A share of the largest eigenvalue; what is below it says nothing of wbar."""
ALL_EXPLAINED = 1e-11
"""Labels of which less than this share of their squares around their mean is left have no noise."""
NO_MOVE = 1e-9
"""Less of a direction of length 1 is rounding."""
NO_NOISE = 1e-100
"""The sum of squares between records where there are none: all labels are equal."""


class Level(NamedTuple):
    """-2 log likelihood given a centre w: yy - 2 q'w + w'P w, over sigma^2, and ld."""

    p: Floats
    q: Floats
    yy: Floats
    ld: Floats


def between(level: Level, grid: Floats, rho: Floats) -> Level:
    """The sums at `rho` (k, R) from those on `grid` (k, G), which is 0, then even in its logarithm.

    P, q and yy are mixtures of 1/(1 + rho W) over W >= 0, one mixture for all three. Times the root
    of rho such terms are bells over log rho, of a width of 2 to 3, and polynomials through their
    neighbours are close to them. Between 0 and the first rho > 0 there is nothing to go by.
    """
    nodes = np.log(grid[:, 1:])
    at = np.log(np.maximum(rho, grid[:, 1:2]))[..., None]
    first = np.sum(nodes[:, None] <= at, axis=-1) - WINDOW // 2
    places = np.clip(first, 0, nodes.shape[1] - WINDOW)[..., None] + np.arange(WINDOW)
    near = np.take_along_axis(nodes[:, None], places, -1)
    same = np.eye(WINDOW, dtype=bool)
    steps = np.where(same, 1.0, near[..., :, None] - near[..., None, :])
    shares = (np.where(same, 1.0, (at - near)[..., None, :]) / steps).prod(-1)
    plain, bells = np.zeros((2, *rho.shape, grid.shape[1]))
    np.put_along_axis(plain, places + 1, shares, -1)
    np.put_along_axis(bells, places + 1, shares * np.exp((near - at) / 2), -1)
    for weights in (plain, bells):
        weights[rho == 0] = np.eye(grid.shape[1])[0]
    return Level(
        np.einsum("krg,kgij->krij", bells, level.p, optimize=True),
        np.einsum("krg,kgi->kri", bells, level.q),
        np.einsum("krg,kg->kr", bells, level.yy),
        np.einsum("krg,kg->kr", plain, level.ld),
    )


def deviance(total: Level, records: float) -> tuple[Floats, Floats]:
    """-2 log restricted likelihood, wbar integrated out, and the best sigma^2.

    From the sums over all clusters, (..., d, d).
    """
    told, size, free = explained(total)
    square = total.yy - told
    free = records - free
    square = np.maximum(square, SINGULAR * total.yy)  # of data without noise
    sigma2 = np.maximum(square, NO_NOISE) / free
    found = free * (1 + np.log(2 * np.pi * sigma2)) + total.ld + size
    return found, sigma2


def explained(total: Level) -> tuple[Floats, Floats, Floats]:
    """q'P^+q, the logarithm of P's determinant and its rank (...,), over what P tells at all.

    Where it tells everything a factor does, which of large P is ten times as fast as eigenvalues.
    """
    if (d := total.p.shape[-1]) > WIDEST:
        least = SINGULAR * np.trace(total.p, axis1=-2, axis2=-1)[..., None, None]
        try:
            np.linalg.cholesky(total.p - least * np.eye(d))  # no eigenvalue is below that
            factor = np.asarray(np.linalg.cholesky(total.p), np.float64)
        except np.linalg.LinAlgError:
            pass
        else:
            along = forward(factor, total.q)
            sizes = 2 * np.log(np.diagonal(factor, 0, -2, -1)).sum(-1)
            return np.square(along).sum(-1), sizes, np.full(sizes.shape, float(d))
    values, vectors = np.linalg.eigh(total.p)
    slopes = (total.q[..., None, :] @ vectors)[..., 0, :]
    sound = values > SINGULAR * values[..., -1:]
    safe = np.where(sound, values, 1.0)
    told = np.where(sound, np.square(slopes) / safe, 0.0).sum(-1)
    return told, np.log(safe).sum(-1), sound.sum(-1).astype(np.float64)


def forward(factor: Floats, q: Floats) -> Floats:
    """C^-1 q (..., d), of lower triangles C."""
    from scipy.linalg.blas import dtrsv

    rows = zip(factor.reshape(-1, *factor.shape[-2:]), q.reshape(-1, q.shape[-1]), strict=True)
    return np.reshape([dtrsv(c.T, own, trans=1) for c, own in rows], q.shape)


def cleaned(directions: Floats) -> Floats:
    """Directions without the rounding of what they do not move."""
    return np.where(np.abs(directions) > NO_MOVE, directions, 0.0)


def noiseless(square: float, around: float, whole: float) -> bool:
    """True if nothing is left of labels but rounding, in squares.

    They add up to `whole`, and around their mean to `around`.
    """
    rounding = 64 * float(np.finfo(np.float64).eps) * whole
    return around <= rounding or square <= max(ALL_EXPLAINED * around, rounding, NO_NOISE)
