"""The potential of the smallest flow on a graph of many edges, by conjugate gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Floats

if TYPE_CHECKING:
    from corsage.solvers.convex_clustering.exact.edges import Edges

BALANCED, CARRIES = 1e-30, 300
"""The residual and the number of steps at which conjugate gradients end."""
RISEN = 1e6
"""A residual that is so many times the least falls no more."""


def iterated(edges: Edges, need: Floats) -> Floats:
    """The potential y (n, d) of the flow `need`; for complete pieces it takes a step or two."""
    square = (edges.w**2)[:, None]
    degree = np.bincount(edges.i, square[:, 0], edges.n)
    degree += np.bincount(edges.j, square[:, 0], edges.n)
    inverse = 1.0 / np.maximum(degree, np.finfo(np.float64).tiny)[:, None]
    y, r = np.zeros_like(need), np.where(degree[:, None] > 0, need, 0.0)
    p, old = inverse * r, float((inverse * r * r).sum())
    goal, best, least = BALANCED * old, y, old
    for _ in range(CARRIES):
        lp = edges.adjoint(square * edges.differences(p))
        bent = float((p * lp).sum())
        if old <= goal or bent <= 0.0:
            break
        y, r = y + old / bent * p, r - old / bent * lp
        new = float((inverse * r * r).sum())
        p, old = inverse * r + new / old * p, new
        best, least = (y, new) if new < least else (best, least)
        if new > RISEN * least:  # what is left to carry is rounding, and adds up to nothing
            break
    return best
