"""Counts of users' test samples: outputs beside labels, for each measure that is asked.

Only sums over samples, counts of classes and areas leave a user; `core/counts.py` makes the
measures of them. All is computed in double precision, but for right answers and squared errors,
which are those of the criterion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from torch import Tensor

from corsage.core.arrays import Array, Floats, Ints
from corsage.core.counts import (
    ABSOLUTE,
    AREA,
    AREA_KNOWN,
    CALLED,
    CORRECT,
    LABEL_MEAN,
    LABEL_SQUARES,
    LOG_LOSS_SUM,
    OF,
    RESIDUAL,
    RIGHT_OF_CLASS,
    SQUARED_ERRORS,
)
from corsage.core.measures import Measure
from corsage.networks.batches import Examples
from corsage.networks.criterion import Criterion

Counted = dict[str, Floats]


class Outcome:
    """Outputs and labels of several users' samples, one user after the other.

    Parameters
    ----------
    criterion : says what outputs and labels are.
    outputs, data : (samples, outputs), and whose samples they are; both are held in the unit of
        the labels, if these were standardised.
    """

    def __init__(self, criterion: Criterion, outputs: Tensor, data: Examples) -> None:
        self.criterion, self.outputs = criterion, data.original(outputs)
        self.data = data.in_their_unit()
        self.user = np.repeat(np.arange(len(data)), data.sizes)

    @cached_property
    def u(self) -> Floats:
        """The outputs (samples, outputs)."""
        return np.asarray(self.outputs.detach().cpu().double().numpy())

    @cached_property
    def y(self) -> Array:
        """The labels (samples,)."""
        return self.data.y.cpu().numpy()

    def sums(self, values: Floats) -> Floats:
        """The sum of a value over each user's samples."""
        return np.bincount(self.user, values, len(self.data)).astype(np.float64)

    # Labels that are classes.

    @property
    def classes(self) -> int:
        """The number of classes."""
        return max(int(self.outputs.shape[1]), 2)

    @property
    def called(self) -> Ints:
        """The class that each sample is taken for."""
        if self.u.shape[1] > 1:
            return np.asarray(self.outputs.argmax(1).cpu().numpy(), np.int64)
        return np.asarray(self.u[:, 0] > 0, np.int64)

    @property
    def log_odds(self) -> Floats:
        """The scores of each class (samples, classes): monotone in its chance.

        Of two classes it is the log-odds of class 1, one column.
        """
        if self.u.shape[1] == 1:
            return self.u
        if self.u.shape[1] == 2:
            return np.asarray(self.u[:, 1:] - self.u[:, :1])
        return self.log_chances

    @property
    def log_chances(self) -> Floats:
        """The log of the chance of each class: softmax, or sigmoid of one output."""
        u = self.u
        if u.shape[1] == 1:
            return np.asarray(-np.logaddexp(0.0, np.concatenate([u, -u], axis=1)))
        top = u - u.max(axis=1, keepdims=True)
        return np.asarray(top - np.log(np.exp(top).sum(axis=1, keepdims=True)))

    def correct(self) -> Counted:
        """Right answers."""
        return {CORRECT: self.sums(self.criterion.counted(self.outputs, self.data.y).cpu().numpy())}

    def of_classes(self) -> Counted:
        """Of each class: samples that are of it, that are taken for it, and both."""
        called, found = self.called, Counted()
        for name, labels in (
            (OF, self.y),
            (CALLED, called),
            (RIGHT_OF_CLASS, self.y[self.y == called]),
        ):
            users = self.user if name != RIGHT_OF_CLASS else self.user[self.y == called]
            places = users * self.classes + labels
            shape = len(self.data), self.classes
            table = np.bincount(places, minlength=shape[0] * shape[1]).reshape(shape)
            found |= {f"{name}-{c}": table[:, c].astype(np.float64) for c in range(self.classes)}
        return found

    def areas(self) -> Counted:
        """Each user's area under the ROC curve, and whether its labels have one."""
        scores, begins = self.log_odds, self.data.offsets
        found = np.full(len(self.data), np.nan)
        for u, (begin, size) in enumerate(zip(begins, self.data.sizes, strict=True)):
            rows = slice(int(begin), int(begin + size))
            found[u] = area(scores[rows], self.y[rows])
        known = np.isfinite(found)
        return {AREA: np.where(known, found, 0.0), AREA_KNOWN: known.astype(np.float64)}

    def log_losses(self) -> Counted:
        """Minus the log of the chance of the right class."""
        chances = self.log_chances
        return {LOG_LOSS_SUM: self.sums(-chances[np.arange(len(self.y)), self.y])}

    # Labels that are numbers.

    @property
    def answers(self) -> Floats:
        """The numbers that the model predicts (samples,)."""
        return np.asarray(self.criterion.response(self.outputs)[:, 0].cpu().double().numpy())

    def squares(self) -> Counted:
        """Squared errors."""
        errors = self.criterion.counted(self.outputs, self.data.y).cpu().numpy()
        return {SQUARED_ERRORS: self.sums(errors)}

    def absolutes(self) -> Counted:
        """Absolute errors."""
        return {ABSOLUTE: self.sums(np.abs(self.answers - self.y))}

    def variation(self) -> Counted:
        """Squared errors beside the squares of the labels about each user's own mean.

        Labels are measured from the user's first one: equal ones vary by 0, and not by rounding.
        """
        y, there = self.y.astype(np.float64), self.data.sizes > 0
        first = np.zeros(len(self.data))
        first[there] = y[self.data.offsets[there]]
        mean = first + self.sums(y - first[self.user]) / np.maximum(self.data.sizes, 1)
        return {
            RESIDUAL: self.sums(np.square(self.answers - y)),
            LABEL_MEAN: mean,
            LABEL_SQUARES: self.sums(np.square(y - mean[self.user])),
        }


COUNTING: dict[str, Callable[[Outcome], Counted]] = {
    "accuracy": Outcome.correct,
    "balanced-accuracy": Outcome.of_classes,
    "f1": Outcome.of_classes,
    "auc": Outcome.areas,
    "log-loss": Outcome.log_losses,
    "rmse": Outcome.squares,
    "mse": Outcome.squares,
    "mae": Outcome.absolutes,
    "r2": Outcome.variation,
}
"""The counts of each measure."""


def counts(outcome: Outcome, measures: Sequence[Measure]) -> Counted:
    """The reports of users for some measures, and nothing else."""
    found = Counted()
    for ways in dict.fromkeys(COUNTING[measure.name] for measure in measures):
        found |= ways(outcome)
    wanted = nothing(measures, outcome.classes, len(outcome.data))
    return {name: found[name] for name in wanted}


def nothing(measures: Sequence[Measure], classes: int, users: int) -> Counted:
    """The reports of users without a single test sample, for some measures."""
    numbers = (number for measure in measures for number in measure.numbers(max(classes, 2)))
    return {number.name: np.zeros(users) for number in numbers}


def area(scores: Floats, y: Ints) -> float:
    """The area under the ROC curve of some samples; NaN if all are of one class.

    Of more than two classes it is the mean over those that are there, each against the rest.
    """
    own = [(scores[:, 0], y == 1)] if scores.shape[1] == 1 else []
    own = own or [(scores[:, c], y == c) for c in np.unique(y)]
    found = [ranked(score, of) for score, of in own if 0 < of.sum() < len(of)]
    return float(np.mean(found)) if found else np.nan


def ranked(scores: Floats, of: Ints) -> float:
    """The chance that a sample of the class has the higher score than another, ties by half."""
    _, place, many = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(many) - (many - 1) / 2)[place]
    inside = int(of.sum())
    most = inside * (len(of) - inside)
    return float((ranks[of].sum() - inside * (inside + 1) / 2) / most)
