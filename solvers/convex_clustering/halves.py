"""The numbers that the server's halves of all solvers share, and users that come and go.

splitting.py and pdmm.py ask for points p_i and weights kappa_i, from which the users take the
proximal step (16),

    x_i = argmin over x of  f_i(x) + kappa_i/2 |x - p_i|^2,

and take in the x_i that come back. Rows are those of the graph's users and edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from corsage.core.arrays import Floats, Ints


@dataclass(frozen=True)
class Facts:
    """Means over the users: H = trace(hessian of f_i at 0)/d, and |grad f_i(0)|."""

    curvature: float
    slope: float


@dataclass(frozen=True)
class Rules:
    """The numbers of the solvers that can be given.

    Parameters
    ----------
    rho, tau : where to begin; None: from what is known of the users.
    relax : how much of a step s_i takes (dr).
    nu, eta : of Algorithm 1.
    p_users, p_pairs : p_P and p_D, the shares of users and of pairs in a round.
    seed : of the pairs of a round.
    """

    rho: float | None
    tau: float | None
    relax: float
    nu: float
    eta: float
    p_users: float
    p_pairs: float
    seed: int


@dataclass(frozen=True)
class Moved:
    """The rows that users and edges had before users came or went; -1 for new ones."""

    users: Ints
    edges: Ints


def moved_users(values: Floats, rows: Ints) -> Floats:
    """The rows of the users that are there now; that of a new one is the mean of all."""
    return np.where((rows >= 0)[:, None], values[rows], values.mean(0))


def moved_edges(values: Floats, rows: Ints) -> Floats:
    """The rows of the edges that are there now; that of a new one is 0."""
    found = np.zeros((len(rows), values.shape[1]), order="F")
    found[rows >= 0] = values[rows[rows >= 0]]
    return found
