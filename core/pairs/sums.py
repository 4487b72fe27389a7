"""Sums of users' test samples: how many are asked for, and how results have them."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from corsage.core.arrays import Array
from corsage.core.measures import ACCURACY, LOG_LOSS, MAE, MSE, RMSE, Measure

SUMMED_MEASURES = (ACCURACY, LOG_LOSS, MAE, MSE, RMSE)
"""Measures that add up something of each sample."""
MOST_SUMS = 64
"""A spread of so many is known to 9%: more would say no more."""
DEVICE_SAMPLES = 5
"""Samples of a sum of errors of numbers that leaves a device, at least."""
LARGEST_SUM = 1e14
"""A sum is cut there: models that err so far are told apart by anything."""


def wanted(measure: Measure, sizes: Collection[int]) -> int:
    """The sums that users are asked for; 0 where the measure adds nothing up."""
    return min(MOST_SUMS, max(sizes, default=0)) if measure in SUMMED_MEASURES else 0


def least_samples(measure: Measure, at_home: bool) -> int:
    """The samples of a sum, at least: right answers are bits, and in a simulation all is there."""
    return 1 if at_home or measure is ACCURACY else DEVICE_SAMPLES


def packed(
    measure: Measure, users: Sequence[str], kept: Sequence[str], rows: Array, at_home: bool
) -> dict[str, Any]:
    """The sums of users (users, sums) as a result has them: of those that are kept, in order.

    Who was evaluated before, as it was at work, has none.
    """
    place = {user: row for row, user in enumerate(users[: len(rows)])}
    rows = np.concatenate([rows, np.full_like(rows[:1], np.nan)])
    found = rows[[place.get(user, -1) for user in kept]].astype("<f4")
    text = base64.b64encode(zlib.compress(found.tobytes(), 1)).decode()
    return {"sums": found.shape[1], "least": least_samples(measure, at_home), "packed": text}
