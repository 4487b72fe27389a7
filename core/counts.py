"""Numbers that users report, and from their counts of test samples to what they are judged by.

A user reports sums over its samples and counts of its classes; here they become its own value and
that of all samples together. NaN stands for a value that its test data do not have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from corsage.core.arrays import Bools, Floats

LARGEST_SQUARE = 1e140
"""No number of a user is larger: its square, summed over all users, is finite."""
EXAMPLES = "num-examples"
Counts = Mapping[str, Floats]
"""What users reported of an evaluation, by name: one number a user."""
CORRECT, SQUARED_ERRORS, ABSOLUTE, LOG_LOSS_SUM = (
    "correct",
    "squared-error",
    "absolute-error",
    "log-loss",
)
RIGHT_OF_CLASS, OF, CALLED = "right", "of", "called"
AREA, AREA_KNOWN = "auc", "auc-known"
RESIDUAL, LABEL_MEAN, LABEL_SQUARES = "residual-squares", "label-mean", "label-squares"
MOST_WRONG = 1e100
"""R^2 is never below minus this."""


@dataclass(frozen=True)
class Number:
    """A number that each user reports.

    Parameters
    ----------
    name : as the client's metrics have it.
    low, high : its range.
    whole : whether it counts something.
    per_sample : at most so much for each of the user's samples.
    optional : a reply may do without it.
    """

    name: str
    low: float = -LARGEST_SQUARE
    high: float = LARGEST_SQUARE
    whole: bool = False
    per_sample: float = math.inf
    optional: bool = False

    def most(self, samples: Floats) -> Floats:
        """The largest that each user may report."""
        if math.isinf(self.per_sample):  # times no samples it would be no number
            return np.full(np.shape(samples), self.high)
        return np.minimum(self.high, self.per_sample * samples)

    def wrong(self, values: Floats, samples: Floats) -> Bools:
        """Mark the users whose values are out of range."""
        fine = (values >= self.low) & (values <= self.most(samples))  # NaN is not
        return ~(fine & (values == np.floor(values))) if self.whole else ~fine

    def why(self, value: float, samples: float) -> str:
        """Say what is wrong with a value."""
        if not math.isfinite(value):
            return f"not finite: {self.name} is {value}"
        kind = "a whole number" if self.whole else "a number"
        most = float(self.most(np.array(samples)))
        return f"{self.name} is {value:.6g}, not {kind} from {self.low:.6g} to {most:.6g}"


def per_sample(counts: Counts, name: str) -> Floats:
    """The mean over each user's samples of something that was summed over them."""
    return counts[name] / counts[EXAMPLES]


def over_all(counts: Counts, name: str) -> float:
    """The mean over all users' samples of something that was summed over them."""
    return float(counts[name].sum() / counts[EXAMPLES].sum())


def summed(name: str) -> tuple[Number, ...]:
    """The number that a mean over samples needs."""
    return (Number(name, low=0.0),)


def unknown(counts: Counts) -> None:
    """No value of all samples together is known from what users report."""


def table(counts: Counts, name: str) -> Floats:
    """Counts of each class (users, classes)."""
    columns: list[Floats] = []
    while (number := f"{name}-{len(columns)}") in counts:
        columns.append(counts[number])
    return np.stack(columns, axis=1)


def of_classes(*names: str) -> Callable[[int], tuple[Number, ...]]:
    """Numbers of samples of some kind, one for each class."""

    def numbers(classes: int) -> tuple[Number, ...]:
        return tuple(
            Number(f"{name}-{c}", low=0.0, whole=True, per_sample=1.0)
            for name in names
            for c in range(classes)
        )

    return numbers


def balanced(right: Floats, of: Floats) -> Floats:
    """The mean over the classes that are there of the share that is right (users, classes)."""
    there = of > 0
    recall = np.divide(np.minimum(right, of), of, out=np.zeros_like(of), where=there)
    many = there.sum(axis=1)
    return np.where(many > 1, recall.sum(axis=1) / np.maximum(many, 1), np.nan)


def f_score(right: Floats, of: Floats, called: Floats) -> Floats:
    """F1 = 2 right / (of + called): of class 1 if there are two, else the mean over the classes.

    Classes that are neither there nor called are left out, and so are users without any.
    """
    both = of + called
    right = np.minimum(right, np.minimum(of, called))
    each = np.divide(2.0 * right, both, out=np.zeros_like(both), where=both > 0)
    if each.shape[1] == 2:
        return np.where(both[:, 1] > 0, each[:, 1], np.nan)
    return np.asarray(each.sum(axis=1) / np.maximum((both > 0).sum(axis=1), 1))


def determined(residual: Floats, variation: Floats) -> Floats:
    """R^2 = 1 - residual / variation, where the labels vary."""
    safe = np.where(variation > 0, variation, 1.0)
    with np.errstate(over="ignore"):
        return np.where(variation > 0, np.maximum(1.0 - residual / safe, -MOST_WRONG), np.nan)


def pooled_determined(counts: Counts) -> float | None:
    """R^2 of all samples: the labels vary within users and between their means."""
    n, mean = counts[EXAMPLES], counts[LABEL_MEAN]
    mean = mean - mean[0]  # equal means differ by 0, and not by rounding
    between = n * np.square(mean - np.average(mean, weights=n))
    variation = np.array([(counts[LABEL_SQUARES] + between).sum()])
    return one(determined(np.array([counts[RESIDUAL].sum()]), variation))


def one(values: Floats) -> float | None:
    """The only value, if it is a number."""
    value = float(values[0])
    return value if math.isfinite(value) else None


def together(counts: Counts, *names: str) -> list[Floats]:
    """Counts of each class over all users, as if they were one."""
    return [table(counts, name).sum(axis=0, keepdims=True) for name in names]
