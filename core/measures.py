"""Measures of a user's model (the key `measures`); the first of them is a row's own.

All that shows, sorts or stores results asks the measure how: its name, its unit, which end of it is
the good one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from corsage.core.arrays import Floats
from corsage.core.counts import (
    ABSOLUTE,
    AREA,
    AREA_KNOWN,
    CALLED,
    CORRECT,
    LABEL_MEAN,
    LABEL_SQUARES,
    LARGEST_SQUARE,
    LOG_LOSS_SUM,
    OF,
    RESIDUAL,
    RIGHT_OF_CLASS,
    SQUARED_ERRORS,
    Counts,
    Number,
    balanced,
    determined,
    f_score,
    of_classes,
    one,
    over_all,
    per_sample,
    pooled_determined,
    summed,
    table,
    together,
    unknown,
)
from corsage.core.errors import ConfigError
from corsage.core.keys import nearest

DASH = "–"  # noqa: RUF001 (a dash for a number that does not exist, as in print)


@dataclass(frozen=True)
class Measure:
    """One number a user, and how it is named, shown and compared.

    Parameters
    ----------
    name : as results and rows have it, and the key `measures`.
    classes : whether it is for labels that are classes; else for numbers.
    numbers : (classes) -> what each user reports for it, besides its number of samples.
    user : each user's value out of what was reported; NaN where its test data have none.
    pooled : the value of all users' test samples together; None where no sums say it.
    word, unit : as people are shown it.
    meaning : the first words of a sentence on a table of it.
    factor : from the stored to the shown number.
    digits : a shown number as text.
    higher_is_better : whether the best user is the one with the highest number.
    bounds : between which shown numbers it lies.
    needs : what a user's test data must have to be counted.
    """

    name: str
    classes: bool
    numbers: Callable[[int], tuple[Number, ...]]
    user: Callable[[Counts], Floats]
    pooled: Callable[[Counts], float | None]
    word: str
    unit: str
    meaning: str
    factor: float
    digits: Callable[[float], str]
    higher_is_better: bool
    bounds: tuple[float, float]
    needs: str = ""

    @property
    def title(self) -> str:
        """The head of a column: `accuracy %`, `RMSE`."""
        return f"{self.word} {self.unit}".strip()

    def axis(self, words: str) -> str:
        """The label of an axis, `{}` in the words standing for the measure."""
        return words.format(self.word) + (f" ({self.unit})" if self.unit else "")

    @property
    def worst(self) -> str:
        """The end of a distribution at which the worst users are: `min` or `max`."""
        return "min" if self.higher_is_better else "max"

    @property
    def tag(self) -> dict[str, str]:
        """The mark of a result or row of this measure; accuracy needs none."""
        return {} if self is ACCURACY else {"measure": self.name}

    def text(self, value: float | None) -> str:
        """A stored number as people are shown it, without the unit."""
        if value is None or not math.isfinite(value):
            return DASH
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


TWO_CLASSES = "two classes"

ACCURACY = Measure(
    name="accuracy",
    classes=True,
    numbers=lambda classes: (Number(CORRECT, low=0.0, whole=True, per_sample=1.0),),
    user=lambda counts: per_sample(counts, CORRECT),
    pooled=lambda counts: over_all(counts, CORRECT),
    word="accuracy",
    unit="%",
    meaning="Accuracy in percent",
    factor=100.0,
    digits=lambda percent: f"{percent:.1f}",
    higher_is_better=True,
    bounds=(0.0, 100.0),
)
BALANCED_ACCURACY = replace(
    ACCURACY,
    name="balanced-accuracy",
    numbers=of_classes(RIGHT_OF_CLASS, OF),
    user=lambda counts: balanced(table(counts, RIGHT_OF_CLASS), table(counts, OF)),
    pooled=lambda counts: one(balanced(*together(counts, RIGHT_OF_CLASS, OF))),
    word="balanced accuracy",
    meaning="Balanced accuracy (the mean over classes of the share that is right) in percent",
    needs=TWO_CLASSES,
)
AUC = replace(
    ACCURACY,
    name="auc",
    numbers=lambda classes: (
        Number(AREA, low=0.0, high=1.0),
        Number(AREA_KNOWN, low=0.0, high=1.0, whole=True),
    ),
    user=lambda counts: np.where(counts[AREA_KNOWN] > 0, counts[AREA], np.nan),
    pooled=unknown,
    word="AUC",
    unit="",
    meaning="Area under the ROC curve (AUC)",
    factor=1.0,
    digits=lambda value: f"{value:.3f}",
    bounds=(0.0, 1.0),
    needs=TWO_CLASSES,
)
F1 = replace(
    AUC,
    name="f1",
    numbers=of_classes(RIGHT_OF_CLASS, OF, CALLED),
    user=lambda counts: f_score(*(table(counts, name) for name in (RIGHT_OF_CLASS, OF, CALLED))),
    pooled=lambda counts: one(f_score(*together(counts, RIGHT_OF_CLASS, OF, CALLED))),
    word="F1",
    meaning="F1 (of class 1 where there are two classes, else the mean over classes)",
    needs="a sample of class 1, or one that is taken for it",
)
RMSE = Measure(
    name="rmse",
    classes=False,
    numbers=lambda classes: summed(SQUARED_ERRORS),
    user=lambda counts: np.sqrt(per_sample(counts, SQUARED_ERRORS)),
    pooled=lambda counts: math.sqrt(over_all(counts, SQUARED_ERRORS)),
    word="RMSE",
    unit="",
    meaning="Root mean squared error (RMSE, lower is better)",
    factor=1.0,
    digits=four_digits,
    higher_is_better=False,
    bounds=(0.0, math.inf),
)
MSE = replace(
    RMSE,
    name="mse",
    user=lambda counts: per_sample(counts, SQUARED_ERRORS),
    pooled=lambda counts: over_all(counts, SQUARED_ERRORS),
    word="MSE",
    meaning="Mean squared error (MSE, lower is better)",
)
MAE = replace(
    RMSE,
    name="mae",
    numbers=lambda classes: summed(ABSOLUTE),
    user=lambda counts: per_sample(counts, ABSOLUTE),
    pooled=lambda counts: over_all(counts, ABSOLUTE),
    word="MAE",
    meaning="Mean absolute error (MAE, lower is better)",
)
LOG_LOSS = replace(
    RMSE,
    name="log-loss",
    classes=True,
    numbers=lambda classes: summed(LOG_LOSS_SUM),
    user=lambda counts: per_sample(counts, LOG_LOSS_SUM),
    pooled=lambda counts: over_all(counts, LOG_LOSS_SUM),
    word="log-loss",
    meaning="Log-loss in nats (lower is better)",
)
R2 = replace(
    RMSE,
    name="r2",
    numbers=lambda classes: (
        Number(RESIDUAL, low=0.0),
        Number(LABEL_MEAN),
        Number(LABEL_SQUARES, low=0.0),
    ),
    user=lambda counts: determined(counts[RESIDUAL], counts[LABEL_SQUARES]),
    pooled=pooled_determined,
    word="R²",
    meaning="Coefficient of determination (R²)",
    digits=lambda value: f"{value:.3f}" if abs(value) < 1000 else four_digits(value),
    higher_is_better=True,
    bounds=(-math.inf, 1.0),
    needs="two different labels",
)
MEASURES = {
    measure.name: measure
    for measure in (ACCURACY, BALANCED_ACCURACY, AUC, LOG_LOSS, F1, RMSE, MSE, MAE, R2)
}
USUAL_MEASURES = "auto"
"""Accuracy of classes, RMSE of numbers."""
GRADIENT_STEPS = Number("gradient-steps", low=0.0, high=1e12, whole=True, optional=True)
"""Gradients that a user computed in a training message, each of a batch or of all its data."""
ADAPTATION_STEPS = replace(GRADIENT_STEPS, name="adaptation-steps")
"""Those of an evaluation: of fine-tuning, and of new users."""
PROBABLE = ("cross-entropy", "logistic")
"""Losses whose models say how likely each class is."""
MOST_LISTED_CLASSES = 1000
"""Of more classes nobody reports counts of each."""


def baseline_of(measure: Measure) -> str:
    """The number that is what one answer, the best for a user's training labels, would score."""
    return f"baseline-{measure.name}"


def reported(measures: Sequence[Measure], classes: int) -> tuple[Number, ...]:
    """The numbers that each user reports for some measures, besides its samples."""
    found = {number.name: number for one in measures for number in one.numbers(max(classes, 2))}
    lowest = {one: max(one.bounds[0] / one.factor, -LARGEST_SQUARE) for one in measures}
    highest = {one: min(one.bounds[1] / one.factor, LARGEST_SQUARE) for one in measures}
    guesses = (
        Number(baseline_of(one), lowest[one], highest[one], optional=True) for one in measures
    )
    return (*found.values(), Number("loss", low=0.0), *guesses, ADAPTATION_STEPS)


def measures_named(words: str) -> tuple[Measure, ...]:
    """Measures by their names, with commas; ConfigError if one of them is none."""
    names = [name.strip() for name in words.split(",") if name.strip()]
    for name in names:
        if name not in MEASURES:
            known = "" if names == [USUAL_MEASURES] else nearest(name, (USUAL_MEASURES, *MEASURES))
            alone = f" {USUAL_MEASURES} stands alone." if name == USUAL_MEASURES else known
            raise ConfigError(f"measures={words}: {name} is no measure.{alone}")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"measures={words}: {twice[0]} is named twice.")
    if not names:
        raise ConfigError(f"measures={words}: name at least one. {nearest('', MEASURES)}".strip())
    return tuple(MEASURES[name] for name in names)


def chosen(words: str, classes: int, loss: str) -> tuple[Measure, ...]:
    """The measures of a run on labels of so many classes (0: numbers) under a loss.

    Refuses those that such labels, or the outputs of such a loss, do not have.
    """
    if words == USUAL_MEASURES:
        return (ACCURACY if classes else RMSE,)
    found = measures_named(words)
    fitting = ", ".join(name for name, one in MEASURES.items() if one.classes == bool(classes))
    for measure in found:
        if measure.classes != bool(classes):
            labels = f"{classes} classes" if classes else "numbers"
            raise ConfigError(
                f"measures={measure.name}: the labels are {labels}, of which it is no measure; "
                f"choose among {fitting}."
            )
        if measure is LOG_LOSS and loss not in PROBABLE:
            raise ConfigError(
                f"measures=log-loss: loss={loss} gives scores and no probabilities; set "
                "loss=logistic or cross-entropy, or leave log-loss out."
            )
        if measure in (BALANCED_ACCURACY, F1, AUC) and classes > MOST_LISTED_CLASSES:
            raise ConfigError(
                f"measures={measure.name}: {classes} classes are more than the "
                f"{MOST_LISTED_CLASSES} that users count one by one; choose accuracy or log-loss."
            )
    return found


def measure_of(found: Mapping[str, Any]) -> Measure:
    """The measure of a result or row."""
    return MEASURES[found.get("measure", ACCURACY.name)]
