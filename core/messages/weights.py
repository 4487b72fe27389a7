"""What users weigh in an average, none of them more than its share."""

from __future__ import annotations

import numpy as np

from corsage.core.arrays import Floats


def capped(weights: Floats, most: float) -> Floats:
    """The weights, cut so that none is more than the share `most` of their sum.

    The largest are lowered to one height c, the others stay: min(w, c) with the largest c for
    which c <= most * sum of min(w, c). A share below 1/m cannot be had of m users: then all weigh
    the same. Weights that are within their shares are returned as they are, bit for bit.

    Parameters
    ----------
    weights : not negative, at least one of them positive.
    most : a share of the whole, above 0.
    """
    if not weights.any():
        return weights
    total, m = float(weights.sum()), int((weights > 0).sum())
    share = max(most, 1.0 / m)
    if weights.max() <= share * total:
        return weights
    falling = np.sort(weights)[::-1]
    rest = total - np.cumsum(falling)
    for k in range(1, m):  # the k largest are cut to c = share (k c + rest); the next one is not
        if share * k >= 1.0:
            break
        height = share * max(float(rest[k - 1]), 0.0) / (1.0 - share * k)
        if height >= falling[k]:
            return _cut(weights, height)
    return _cut(weights, float(falling[m - 1]))


def _cut(weights: Floats, height: float) -> Floats:
    found: Floats = np.minimum(weights, height)
    return found
