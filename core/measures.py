"""What a user's model is judged by: its accuracy where labels are classes, its RMSE on numbers.

All that shows, sorts or stores results asks the measure how: its name, its unit, which end of it is
the good one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from corsage.core.arrays import Floats
from corsage.core.schema import Number

NONE = "–"  # noqa: RUF001 (a dash for a number that does not exist, as in print)


@dataclass(frozen=True)
class Measure:
    """One number a user, and how it is named, shown and compared.

    Parameters
    ----------
    name : as results and rows have it.
    user : a user's number, out of what was counted and the number of samples.
    word, unit : as people are shown it.
    meaning : the first words of a sentence on a table of it.
    factor : from the stored to the shown number.
    digits : a shown number as text.
    higher_is_better : whether the best user is the one with the highest number.
    bounds : between which shown numbers it lies.
    number : what users report, a sum over their test samples.
    """

    name: str
    user: Callable[[Floats, Floats], Floats]
    word: str
    unit: str
    meaning: str
    factor: float
    digits: Callable[[float], str]
    higher_is_better: bool
    bounds: tuple[float, float]
    number: Number

    @property
    def numbers(self) -> tuple[Number, ...]:
        """What a user reports of an evaluation, besides its number of samples."""
        return self.number, Number("loss", low=0.0)

    @property
    def counted(self) -> str:
        """The metric that users report."""
        return self.number.name

    @property
    def title(self) -> str:
        """The head of a column: `accuracy %`, `RMSE`."""
        return f"{self.word} {self.unit}".strip()

    def axis(self, words: str) -> str:
        """The label of an axis, `{}` in the words standing for the measure."""
        return words.format(self.word) + (f" ({self.unit})" if self.unit else "")

    @property
    def worst(self) -> str:
        """Where a spread over users has the worst of them: `min` or `max`."""
        return "min" if self.higher_is_better else "max"

    @property
    def tag(self) -> dict[str, str]:
        """What says of a result or row that it has this measure; accuracy goes without saying."""
        return {} if self is ACCURACY else {"measure": self.name}

    def text(self, value: float | None) -> str:
        """A stored number as people are shown it, without the unit."""
        if value is None or not math.isfinite(value):
            return NONE
        return self.digits(self.factor * value)

    def merit(self, values: ArrayLike) -> Floats:
        """Floats of which the higher are the better ones."""
        sign = 1.0 if self.higher_is_better else -1.0
        return sign * np.asarray(values, dtype=np.float64)

    def worst_first(self, values: ArrayLike) -> Floats:
        """The values from the worst to the best."""
        flat = np.asarray(values, dtype=np.float64).ravel()
        return flat[np.argsort(self.merit(flat), kind="stable")]


def four_digits(value: float) -> str:
    """A number of any size with four significant digits: 0.01234, 1.234, 12340, 1.234e+09."""
    size = abs(value)
    if size == 0 or 1e-4 <= size < 1e7:
        exponent = math.floor(math.log10(size)) if size else 0
        return f"{value:.{max(3 - exponent, 0)}f}"
    return f"{value:.3e}"


ACCURACY = Measure(
    name="accuracy",
    user=lambda correct, samples: correct / samples,
    word="accuracy",
    unit="%",
    meaning="Accuracy in percent",
    factor=100.0,
    digits=lambda percent: f"{percent:.1f}",
    higher_is_better=True,
    bounds=(0.0, 100.0),
    number=Number("correct", low=0.0, whole=True, per_sample=1.0),
)
RMSE = Measure(
    name="rmse",
    user=lambda squared, samples: np.sqrt(squared / samples),
    word="RMSE",
    unit="",
    meaning="Root mean squared error (RMSE, lower is better)",
    factor=1.0,
    digits=four_digits,
    higher_is_better=False,
    bounds=(0.0, math.inf),
    number=Number("squared-error", low=0.0),
)
MEASURES = {measure.name: measure for measure in (ACCURACY, RMSE)}


def measure_of(found: Mapping[str, Any]) -> Measure:
    """The measure of a result or row."""
    return MEASURES[found.get("measure", ACCURACY.name)]


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
    """How a quantity is spread over users: mean, standard deviation, extremes and quantiles."""

    mean: float
    std: float
    min: float
    q10: float
    q25: float
    median: float
    q75: float
    max: float


def spread(values: ArrayLike) -> Spread:
    """How values are spread over users.

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
