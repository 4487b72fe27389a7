"""Partitions of models, for others to judge: by the sum of norms, and by average linkage.

The sum of norms is that of Armacki et al. 2022, (3), for |x - s_i|^2 / 2 and pairs of near models
only, for a path of lam, each certified by its duality gap (wide_prox.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.solvers.convex_clustering.exact.wide_prox import (
    PROMISING,
    distances,
    neighbours,
    wide_prox,
)
from corsage.solvers.convex_clustering.reading import in_order, linked

MOST_PROPOSED = 8
"""Clusters there are at most."""
NEIGHBOURS = 10
"""Pairs of the sum of norms are those of which one is among the other's so many nearest."""
PATH_VALUES = 6
"""Values of lam."""


def proposals(models: Floats) -> Iterator[tuple[str, Ints]]:
    """Partitions (n,) of models (n, P), and where they are from."""
    gaps = distances(models)
    weights = neighbours(models, min(NEIGHBOURS, len(models) - 1))
    scale = float(np.median(gaps[weights > 0])) / weights.sum(1).mean()
    y = models
    for t in np.geomspace(0.03, 3.0, PATH_VALUES) * scale:
        found = wide_prox(models, float(t), y, weights)
        y = found.rows
        if found.labels.max() < MOST_PROPOSED and found.gap <= PROMISING:
            yield "sum of norms", in_order(found.labels)
    for k in range(2, min(MOST_PROPOSED, len(models) - 1) + 1):
        yield "linkage", in_order(linked(models, k))
