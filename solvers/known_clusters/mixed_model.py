"""Known clusters solved exactly, from sums: two levels of quadratics that are shrunk to a centre.

Lyu et al. 2022, (2.3) and (5.2), with f_i(theta) = 1/2 theta' A_i theta - b_i' theta and any
A_i >= 0:

    sum_j lambda_j/2 |w_j - wbar|^2 + sum_i [ f_i(theta_i) + gamma_i/2 |theta_i - w_j|^2 ].

A user who has minimised over theta_i is left with the quadratic 1/2 w' P_i w - q_i' w of the
centre: `shrunk`. Quadratics add up, so a cluster needs the sums of P_i and q_i only. A cluster is
to wbar what a user is to its w_j: the server does the same once more (`centres`), and the users
find their models from their centres (`personal`). One round, and secure sums will do.

Other smooth losses take a few such rounds: A_i is the Hessian at the present theta_i, and b_i
makes the gradient right (newton_rounds.py).

Arrays are float64 with the users, or clusters, as the first axis. Strengths gamma and lambda are
one number, one a user (n,), or one a user and coordinate (n, d). All may be infinite (no deviation
from the centre), the first two also 0 (no tie: the shortest local minimiser).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from corsage.core.arrays import Floats, Ints
from corsage.core.errors import ModelError
from corsage.solvers.known_clusters.spectra import Partial, Spectra


@dataclass(frozen=True)
class ClusterSums:
    """Sums of P_i (k, d, d) and q_i (k, d) over the users of each cluster; they add over nodes."""

    P: Floats
    q: Floats

    def __add__(self, other: ClusterSums) -> ClusterSums:
        return ClusterSums(self.P + other.P, self.q + other.q)

    @classmethod
    def of(cls, a: Floats, b: Floats, gamma: ArrayLike, cluster: Ints, k: int) -> ClusterSums:
        """The sums of a node's users, `cluster` (n,) being their clusters' numbers."""
        p, q = shrunk(a, b, gamma)
        return cls(by_cluster(p, cluster, k), by_cluster(q, cluster, k))

    def packed(self) -> Floats:
        """The numbers that are sent, (k, d(d+1)/2 + d)."""
        return np.concatenate([pack(self.P), self.q], axis=-1)

    @classmethod
    def unpacked(cls, rows: Floats, d: int) -> ClusterSums:
        """The sums from the numbers that were sent."""
        return cls(unpack(rows[..., :-d], d), rows[..., -d:])


DEFINITE = 1e-12
"""A is flat in no direction where its eigenvalues are above this share of their sum."""


class Centres(NamedTuple):
    """w_j (k, d), and wbar (d,)."""

    w: Floats
    wbar: Floats


# One level: quadratics that are tied to a centre.


def shrunk(a: Floats, b: Floats, gamma: ArrayLike) -> tuple[Floats, Floats]:
    """P_i (n, d, d) and q_i (n, d): what a user knows of its centre, 1/2 w'P_i w - q_i'w.

    P = gamma (I - gamma S), q = gamma S b, with S = (A + gamma I)^-1; A and b at gamma = inf,
    zeros at gamma = 0.
    """
    scale = _scale(a, gamma)
    if scale is None and np.isinf(gamma).all() and _definite(a):
        return a, b
    if scale is None and not np.any(gamma):
        return np.zeros_like(a), np.zeros_like(b)
    if scale is None:
        return Spectra.of(a, b).shrunk(gamma)
    if not scale.all():
        return Partial.of(a, b, scale).shrunk()
    p, q = Spectra.of(a * _outer(scale), b * scale).shrunk(1.0)
    return p / _outer(scale), q / scale


def _definite(a: Floats) -> bool:
    """True if no A is flat in any direction: then there is no rounding to be taken out of them."""
    least = DEFINITE * np.trace(a, axis1=-2, axis2=-1)[..., None, None]
    try:
        np.linalg.cholesky(a - least * np.eye(a.shape[-1]))
    except np.linalg.LinAlgError:
        return False
    return True


def personal(a: Floats, b: Floats, gamma: ArrayLike, w: Floats) -> Floats:
    """theta_i = S_i (b_i + gamma_i w_i) (n, d), given each user's centre w (n, d).

    w at gamma = inf, the shortest local minimiser A^+ b at gamma = 0.
    """
    scale = _scale(a, gamma)
    if scale is None and np.isinf(gamma).all():
        return np.array(w, np.float64)
    if scale is None and not np.any(gamma) and _definite(a):
        return np.asarray(np.linalg.solve(a, b[..., None])[..., 0])
    if scale is None:
        return Spectra.of(a, b).personal(gamma, w)
    if not scale.all():
        return Partial.of(a, b, scale).personal(w)
    return scale * Spectra.of(a * _outer(scale), b * scale).personal(1.0, w / scale)


def centres(p: Floats, q: Floats, lam: ArrayLike) -> Centres:
    """w_j and wbar from each cluster's sums of P_i (k, d, d) and q_i (k, d).

    [sum_j lambda_j M_j P_j] wbar = sum_j lambda_j M_j q_j, w_j = M_j (lambda_j wbar + q_j), with
    M_j = (P_j + lambda_j I)^-1. lambda_j = inf: w_j = wbar. lambda_j = 0: w_j = P_j^+ q_j, which
    does not count for wbar; where no cluster counts, wbar is the plain mean of the w_j. What the
    sums leave open is taken of least norm.
    """
    top = [part.sum(0, keepdims=True) for part in shrunk(p, q, lam)]
    wbar = personal(top[0], top[1], 0.0, np.zeros_like(top[1]))
    w = personal(p, q, lam, np.broadcast_to(wbar, q.shape))
    return Centres(w, wbar[0] if np.any(np.asarray(lam) > 0) else w.mean(0))


def _scale(a: Floats, gamma: ArrayLike) -> Floats | None:
    """gamma^-1/2 if it is one a coordinate, which makes all ties 1; else None.

    0 where gamma is infinite: such a coordinate is the centre's.
    """
    tie = np.asarray(gamma, np.float64)
    if np.any(np.isnan(tie)) or np.any(tie < 0):
        raise ModelError("strengths: negative or not a number; give numbers from 0 to inf.")
    if tie.ndim < a.ndim - 1:
        return None
    if not np.all(tie > 0):
        raise ModelError("strengths by coordinate: 0; give numbers above 0, or inf.")
    return np.asarray(1 / np.sqrt(tie))


def _outer(scale: Floats) -> Floats:
    """s s'."""
    return scale[..., :, None] * scale[..., None, :]


# Sums.


def by_cluster(values: Floats, cluster: Ints, k: int) -> Floats:
    """Sums (k, ...) of the rows (n, ...) of each cluster; 0 for a cluster without any."""
    if k == 1:
        return np.asarray(values.sum(0, keepdims=True), np.float64)
    if (cluster[1:] < cluster[:-1]).any():  # rows in order are not copied
        order = np.argsort(cluster, kind="stable")
        values, cluster = values[order], cluster[order]
    sums = np.zeros((k, *values.shape[1:]))
    if len(cluster):
        starts = np.flatnonzero(np.diff(cluster, prepend=cluster[0] - 1))
        sums[cluster[starts]] = np.add.reduceat(values, starts, axis=0)
    return sums


def pack(p: Floats) -> Floats:
    """The d(d+1)/2 numbers of symmetric matrices (..., d, d)."""
    rows, columns = np.triu_indices(p.shape[-1])
    return np.asarray(p[..., rows, columns])


def unpack(numbers: Floats, d: int) -> Floats:
    """The symmetric matrices (..., d, d) of `pack`."""
    rows, columns = np.triu_indices(d)
    p = np.empty((*numbers.shape[:-1], d, d))
    p[..., rows, columns] = numbers
    p[..., columns, rows] = numbers
    return p
