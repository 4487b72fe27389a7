"""Users' models where what ties them to their centre is a covariance D = L L', given by its root.

theta = w + L u with |u|^2/2 for its cost, so D may be singular: what does not vary is the centre's.
"""

from __future__ import annotations

import numpy as np

from corsage.core.arrays import Floats
from corsage.solvers.known_clusters.absorbed import Known, known, spread
from corsage.solvers.known_clusters.lanes import (
    AT_ONCE,
    WIDEST,
    back,
    dots,
    factor,
    lanes,
    plus_one,
    solved,
    solved_back,
)


def rooted_models(a: Floats, b: Floats, root: Floats, w: Floats) -> Floats:
    """theta_i = w + V (b - A w) (n, d), with V = L (I + L'AL)^-1 L'."""
    if len(b) > AT_ONCE and root.shape[0] <= WIDEST:
        parts = (slice(first, first + AT_ONCE) for first in range(0, len(b), AT_ONCE))
        return np.concatenate([models_in_lanes(a[p], b[p], root, w[p]) for p in parts])
    slope = (b - (a @ w[..., None])[..., 0]) @ root
    k = np.eye(root.shape[1]) + root.T @ (a @ root)
    return np.asarray(w + np.linalg.solve(k, slope[..., None])[..., 0] @ root.T)


def models_in_lanes(a: Floats, b: Floats, root: Floats, w: Floats) -> Floats:
    """The same of very many users: u = K^-1 L'(b - A w) with K = CC', users last."""
    up, across, centre = root[..., None], lanes(a), lanes(w)[:, None]
    rest = lanes(b)[:, None] - dots(across, centre)
    c = factor(plus_one(dots(up, np.swapaxes(dots(up, across), 0, 1))))
    u = solved_back(c, solved(c, dots(up, rest)))
    return back((centre + dots(np.swapaxes(up, 0, 1), u))[:, 0])


def rooted_prediction(a: Floats, b: Floats, root: Floats, centre: Floats) -> tuple[Floats, Floats]:
    """Of theta_i - what it estimates (n, d, d), and the weight V A of a user's own data.

    `centre` (d, d) is the covariance of the users' centre.
    """
    around = Known(np.zeros_like(b), np.broadcast_to(centre, a.shape))
    return known(a, b, root, around).covariance, spread(a, root) @ a
