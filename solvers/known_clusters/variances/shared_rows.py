"""The two-level Gaussian model of several outputs of the same rows, by restricted likelihood.

Lyu et al. 2022, section 5, for users whose record z has C outputs, one linear model each:

    theta_ic ~ N(w_jc, s^2 I),   w_jc ~ N(wbar_c, sb^2 I),   y_c = z'theta_ic + N(0, sigma^2).

All outputs have the same A_i = sum z z', so users send A_i once, b_i = sum z y' (d, C) and
yy_i = sum |y|^2; everything else follows from these. With rho = s^2/sigma^2 a user is left with

    P_i = A_i M_i^-1,  q_i = M_i^-1 b_i,  yy_i - rho tr(b_i'q_i),  log|M_i|,  M_i = I + rho A_i,

which add up over a cluster, and a cluster is to wbar, with tau = sb^2/sigma^2, what a user is to
w_j. sigma^2 and wbar are found in closed form, tau and rho one inside the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from corsage.core.arrays import Floats, Ints

DECADES = 4.0
"""rho and tau are looked for so many powers of ten around what weighs both sides equally."""
RHO_CLOSE = 0.05
"""Powers of ten to which rho is found; the likelihood is flat around its maximum."""
INVERTED_AT_ONCE = 32
"""Users whose matrices are inverted together."""
SINGLE_SLACK = 1e-6
"""The share of the trace that rounding to single precision may take from an eigenvalue."""
EXPLAINED_SLACK = 1e-3
"""By how much it may let more be explained than there is."""
OPEN_SHARE = 1e-10
"""A share of the largest eigenvalue; what is below is left open by the rows of all users."""


class Rows(NamedTuple):
    """A_i (n, d, d), b_i (n, d, C), yy_i (n,) and records m_i (n,) of users, or sums of them."""

    a: Floats
    b: Floats
    yy: Floats
    records: Floats


class Level(NamedTuple):
    """Sums with the models below integrated out: P, q (.., d, C), yy, log det."""

    p: Floats
    q: Floats
    yy: Floats
    ld: Floats


@dataclass(frozen=True)
class Shared:
    """The maximum of the likelihood.

    Parameters
    ----------
    rho, tau : s^2/sigma^2 and sb^2/sigma^2.
    sigma2 : sigma^2.
    w : w_j (k, d, C).
    wbar : the middle (d, C).
    deviance : -2 log restricted likelihood.
    at_boundary : whether rho is at an end of where it was looked for.
    """

    rho: float
    tau: float
    sigma2: float
    w: Floats
    wbar: Floats
    deviance: float
    at_boundary: bool

    @property
    def gamma(self) -> float:
        """gamma = sigma^2/s^2, the strength of a user's pull to its cluster."""
        return 1.0 / self.rho


def possible(rows: Rows) -> NDArray[np.bool_]:
    """The users (n,) whose sums can be of data: A_i and yy_i - b_i' A_i^+ b_i are not negative."""
    ridge = SINGLE_SLACK * np.einsum("nii->n", np.abs(rows.a))
    found = np.zeros(len(rows.a), bool)
    for some in pieces(len(rows.a)):
        m = torch.from_numpy(rows.a[some] + ridge[some, None, None] * np.eye(rows.a.shape[1]))
        factor, wrong = torch.linalg.cholesky_ex(m)
        b = torch.from_numpy(rows.b[some])
        explained = torch.linalg.solve_triangular(factor, b, upper=False).square().sum((1, 2))
        limit = torch.from_numpy((1 + EXPLAINED_SLACK) * rows.yy[some])
        found[some] = ((wrong == 0) & (explained <= limit)).numpy()
    return found


def absorbed(a: Floats, b: Floats, yy: Floats, ratio: float) -> Level:
    """Each row's models integrated out of its quadratic: x ~ N(centre, ratio I)."""
    m = torch.from_numpy(a) * ratio
    m.diagonal(dim1=-2, dim2=-1).add_(1.0)
    factor, wrong = torch.linalg.cholesky_ex(m)
    if (wrong > 0).any():  # where sums are large, rounding makes them less than 0
        values, vectors = torch.linalg.eigh(m[wrong > 0])
        m[wrong > 0] = (vectors * values.clamp(min=1.0)[:, None]) @ vectors.mT
        factor = torch.linalg.cholesky(m)
    inverse = torch.cholesky_inverse(factor)
    q = (inverse @ torch.from_numpy(b)).numpy()
    inverse.neg_().diagonal(dim1=-2, dim2=-1).add_(1.0)
    p = inverse.div_(ratio).numpy()
    ld = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1).numpy()
    return Level(p, q, yy - ratio * np.einsum("ndc,ndc->n", b, q), ld)


def clusters_at(rows: Rows, cluster: Ints, k: int, rho: float) -> Level:
    """The sums over each cluster's users (k, ...), theta_i integrated out."""
    d, outputs = rows.b.shape[1:]
    total = Level(np.zeros((k, d, d)), np.zeros((k, d, outputs)), np.zeros(k), np.zeros(k))
    for some in pieces(len(rows.a)):
        level = absorbed(rows.a[some], rows.b[some], rows.yy[some], rho)
        here, place = np.unique(cluster[some], return_inverse=True)
        member = (np.arange(len(here))[:, None] == place).astype(np.float64)
        for whole, part in zip(total, level, strict=True):
            whole[here] += np.tensordot(member, part, 1)
    return total


def pieces(n: int) -> Iterator[slice]:
    """Users in groups whose matrices fit into memory."""
    return (slice(at, at + INVERTED_AT_ONCE) for at in range(0, n, INVERTED_AT_ONCE))


def deviance(level: Level, records: float) -> tuple[float, float, Floats]:
    """-2 log restricted likelihood of sums over all clusters, the best sigma^2, and wbar."""
    values, vectors = np.linalg.eigh(level.p)
    sound = values > OPEN_SHARE * values[-1]
    slopes = (vectors.T @ level.q)[sound]
    wbar = vectors[:, sound] @ (slopes / values[sound, None])
    free = level.q.shape[-1] * (records - sound.sum())
    square = max(float(level.yy - np.sum(level.q * wbar)), OPEN_SHARE * float(level.yy))
    outputs = level.q.shape[-1]
    log_det = outputs * (float(level.ld) + np.log(values[sound]).sum())
    return free * (1 + np.log(2 * np.pi * square / free)) + log_det, square / free, wbar


def middle(level: Level, tau: float) -> Level:
    """Clusters (k, ...) with w_j integrated out, summed up."""
    above = absorbed(level.p, level.q, level.yy, tau) if tau else level
    whole = Level(*(part.sum(0) for part in above))
    return whole._replace(ld=whole.ld + (level.ld.sum() if tau else 0.0))


def best_tau(level: Level, records: float) -> float:
    """tau of the largest likelihood, given rho; 0 where there is one cluster, or no difference."""
    if len(level.p) == 1:
        return 0.0

    def at(tau: float) -> float:
        return deviance(middle(level, tau), records)[0]

    scale = weight(level.p)
    found = minimize_scalar(
        lambda x: at(10.0**x / scale), bounds=(-DECADES, DECADES), options={"xatol": RHO_CLOSE}
    )
    tau = 10.0 ** float(found.x) / scale
    return tau if at(tau) < at(0.0) else 0.0


def weight(a: Floats) -> float:
    """A typical coordinate's curvature: the median over matrices (n, d, d) of the mean diagonal."""
    return float(np.median(np.mean(np.diagonal(a, axis1=-2, axis2=-1), axis=-1))) or 1.0


def fit(rows: Rows, cluster: Ints, k: int) -> Shared:
    """The variances of the largest restricted likelihood, and the centres at these.

    `cluster` are the users' clusters, numbers below `k`.
    """
    records, scale = float(rows.records.sum()), weight(rows.a)

    def profile(x: float) -> tuple[float, float, Level]:
        level = clusters_at(rows, cluster, k, 10.0**x / scale)
        tau = best_tau(level, records)
        return deviance(middle(level, tau), records)[0], tau, level

    found = minimize_scalar(
        lambda x: profile(x)[0], bounds=(-DECADES, DECADES), options={"xatol": RHO_CLOSE}
    )
    x = float(found.x)
    _, tau, level = profile(x)
    at, sigma2, wbar = deviance(middle(level, tau), records)
    return Shared(
        rho=10.0**x / scale,
        tau=tau,
        sigma2=sigma2,
        w=drawn_to(level.p, level.q, tau, wbar),
        wbar=wbar,
        deviance=at,
        at_boundary=abs(x) > DECADES - 2 * RHO_CLOSE,
    )


def without(rows: Rows, cluster: Ints, found: Shared, users: Ints) -> Floats:
    """w_j of some users' clusters by the rows of all others (n, d, C), at the same variances."""
    level, centres = clusters_at(rows, cluster, len(found.w), found.rho), []
    for some in (users[at] for at in pieces(len(users))):
        own = absorbed(rows.a[some], rows.b[some], rows.yy[some], found.rho)
        p, q = level.p[cluster[some]] - own.p, level.q[cluster[some]] - own.q
        if found.tau:
            centres.append(drawn_to(p, q, found.tau, found.wbar))
        else:
            p, q = (part.sum(0) - one for part, one in ((level.p, own.p), (level.q, own.q)))
            centres.append(np.linalg.pinv(p, rcond=OPEN_SHARE, hermitian=True) @ q)
    return np.concatenate(centres)


def drawn_to(a: Floats, b: Floats, ratio: float, centre: Floats) -> Floats:
    """argmin of 1/2 x'A x - tr(x'b) + |x - centre|^2 / (2 ratio), (n, d, C); ratio 0: the centre.

    theta_i from w_j with rho, w_j from wbar with tau.
    """
    if not ratio:
        return np.broadcast_to(centre, b.shape).copy()
    m = a * ratio + np.eye(a.shape[-1])
    right = ratio * b + np.broadcast_to(centre, b.shape)
    return np.asarray(np.linalg.solve(m, right), np.float64)
