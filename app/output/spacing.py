"""Labels that would lie on each other, moved apart."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np


def spaced(heights: Sequence[float], gap: float, high: float) -> list[float]:
    """Heights moved apart to at least `gap`, in their order, the highest at most at `high`."""
    placed = np.array(heights, dtype=float)
    order = np.argsort(placed, kind="stable")
    for below, above in itertools.pairwise(order):
        placed[above] = max(placed[above], placed[below] + gap)
    for index in order[::-1]:
        placed[index] = min(placed[index], high)
        high = placed[index] - gap
    return [float(height) for height in placed]
