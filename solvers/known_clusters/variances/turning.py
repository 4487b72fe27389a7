"""The search for full covariances in the coordinates of their own directions.

Where users differ in some directions only, the root of a full covariance is singular. A lower
triangle puts the zeros of its last columns at the end; if the coefficients that do not differ come
first, many triangles say the same, and Fisher's scoring creeps along them for hundreds of steps. In
coordinates of the covariance's own directions, the longest first, each number that is to be 0 has
a curvature, and some ten steps are all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from corsage.core.arrays import Floats
from corsage.solvers.known_clusters.tree import Tree
from corsage.solvers.known_clusters.variances.scoring import GAIN, SCORING_STEPS, Fitted, Scoring
from corsage.solvers.known_clusters.variances.shapes import FULL, Shape

FIRST_TURN, NEXT_TURNS = 4, 8
"""Steps after which directions are those of what was found by then."""


def searched(
    tree: Tree,
    shapes: Sequence[Shape],
    x: Sequence[Floats] | None = None,
    enough: float = GAIN,
    most: int = SCORING_STEPS,
) -> Fitted:
    """The most likely numbers, as `Scoring.fitted` finds them, with full covariances turned."""
    if all(shape.kind != FULL for shape in shapes):
        return Scoring(tree, shapes).fitted(None if x is None else list(x), most, enough=enough)
    x = Scoring(tree, shapes).started().x if x is None else list(x)
    first, before, steps = -1.0, np.inf, FIRST_TURN
    while True:
        own, turns = zip(*map(turned, shapes, x), strict=True)
        found = Scoring(tree, own).fitted(list(turns), min(steps, most), enough=enough)
        x = [plain(shape, one) for shape, one in zip(own, found.x, strict=True)]
        first, most = found.first if first < 0 else first, most - steps
        if found.gain < enough or most <= 0 or found.deviance >= before:
            return replace(found, shapes=tuple(shapes), x=x, first=first)
        before, steps = found.deviance, NEXT_TURNS


def turned(shape: Shape, x: Floats) -> tuple[Shape, Floats]:
    """The same covariance in its own directions, the longest first."""
    if shape.kind != FULL or not shape.size:
        return shape, x
    own = np.tensordot(x[: shape.inner], shape.basis, 1)[shape.varies]
    directions = np.linalg.svd(own)[0].T
    new = replace(shape, turn=directions)
    return new, np.append(triangle(directions @ own), x[shape.inner :])


def plain(shape: Shape, x: Floats) -> Floats:
    """The numbers of a turned covariance in the coordinates of the coefficients."""
    if shape.kind != FULL or not shape.size:
        return x
    own = np.tensordot(x[: shape.inner], shape.basis, 1)[shape.varies]
    return np.append(triangle(own), x[shape.inner :])


def triangle(root: Floats) -> Floats:
    """The numbers of the lower triangle T with TT' = LL'."""
    lower = np.linalg.qr(root.T)[1].T
    signs = np.where(np.diag(lower) < 0, -1.0, 1.0)
    return np.asarray((lower * signs)[np.tril_indices(len(root))])
