"""The distribution over users of what their models are measured by."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from corsage.core.arrays import Floats
from corsage.core.measures import ACCURACY, Measure


def finite(values: ArrayLike) -> Floats:
    """The values as one flat array; refused when there is none, or one is not a number."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    if not flat.size:
        raise ValueError("statistics over users: there is no user")
    bad = int(np.count_nonzero(~np.isfinite(flat)))
    if bad:
        raise ValueError(f"statistics over users: {bad} of {flat.size} values are not finite")
    return flat


@dataclass(frozen=True)
class Spread:
    """The distribution of a quantity over users: mean, deviation, extremes and quantiles."""

    mean: float
    std: float
    min: float
    q10: float
    q25: float
    median: float
    q75: float
    max: float


def spread(values: ArrayLike) -> Spread:
    """The distribution of values over users.

    The standard deviation is the population's (one user: 0), for the users are all there are.
    """
    flat = finite(values)
    quantiles = np.quantile(flat, [0.0, 0.1, 0.25, 0.5, 0.75, 1.0])
    return Spread(float(flat.mean()), float(flat.std()), *map(float, quantiles))


def worst_share(values: ArrayLike, share: float = 0.1, measure: Measure = ACCURACY) -> float:
    """Mean of the worst `share` of the values, rounded up to whole users: at least one."""
    flat = measure.worst_first(finite(values))
    # 0.1 * 30 may come out a hair above 3: that is not a fourth user.
    count = min(max(math.ceil(share * flat.size - 1e-9), 1), flat.size)
    return float(flat[:count].mean())
