"""95% intervals of paired differences: over seeds, and over users.

A seed deals the users and draws everything else, and all rows of a study have the same ones. So the
difference of two rows is taken seed by seed, and within a seed user by user.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from corsage.core.arrays import Floats

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """From where to where."""

    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether no difference at all is outside of it."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Difference:
    """How far one row is above another one.

    Parameters
    ----------
    mean : over the seeds, of the means over users.
    over_seeds : Student's t interval of the seeds' differences; None of fewer than two seeds.
    over_users : t interval over the users, paired, within each seed; None of fewer than two users.
    """

    mean: float
    over_seeds: Interval | None
    over_users: Interval | None

    @property
    def deciding(self) -> Interval | None:
        """What says whether the rows are told apart: the seeds, or with one seed the users."""
        return self.over_seeds or self.over_users

    @property
    def sure(self) -> bool:
        """Whether the rows are told apart."""
        return self.deciding is not None and self.deciding.excludes_zero

    def json(self) -> dict[str, Any]:
        """As the study's file has it."""
        return asdict(self)


def difference(pairs: Sequence[Floats]) -> Difference | None:
    """That of two rows, of the users' differences in each seed; None if they share no seed."""
    means = np.array([each.mean() for each in pairs])
    if not len(means):
        return None
    return Difference(float(means.mean()), over_seeds(means), over_users(pairs))


def over_seeds(means: Floats) -> Interval | None:
    """The t interval of the mean of the seeds' differences, n - 1 degrees of freedom."""
    if len(means) < 2:
        return None
    error = float(means.std(ddof=1)) / math.sqrt(len(means))
    return around(float(means.mean()), error, len(means) - 1)


def over_users(pairs: Sequence[Floats]) -> Interval | None:
    """The interval of the mean over seeds, seeds as they are and users as a sample.

    The variance of the mean is that of the seeds' means over users, added up; the degrees of
    freedom are the users less one, summed over the seeds.
    """
    if any(len(each) < 2 for each in pairs):
        return None
    variance = sum(float(each.var(ddof=1)) / len(each) for each in pairs) / len(pairs) ** 2
    mean = float(np.mean([each.mean() for each in pairs]))
    return around(mean, math.sqrt(variance), sum(len(each) - 1 for each in pairs))


def around(mean: float, error: float, freedom: int) -> Interval:
    """Student's interval."""
    from scipy.stats import t  # slow to import

    width = float(t.ppf(0.5 + LEVEL / 2, freedom)) * error
    return Interval(mean - width, mean + width)
