"""The inputs that the columns of a table become, as the whole federation has agreed.

Numbers are shifted and scaled, a category is an input a level, what is missing is filled in, and
labels are classes with names, or numbers that are standardised too. Whoever has this and a row of
raw cells, a device, a new user or a model on disk, makes the same inputs of it, and of a model's
number one in the label's unit again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from corsage.core.arrays import Array, Floats, Ints
from corsage.core.configuration.data_keys import UNSCALED
from corsage.core.errors import DataError
from corsage.core.tables.cells import coded, number, word_of
from corsage.core.tables.column_facts import CATEGORY, MISSING_LEVEL, NUMBER, Moments

MOST_SCALE = 1e300
"""No scale is larger."""
CONSTANT_SPREAD = 1e-12
"""A spread of so little of the mean is rounding: the column is constant."""
V = TypeVar("V")


@dataclass(frozen=True)
class Column:
    """A raw column.

    Parameters
    ----------
    kind : of its cells: numbers, or the words of a category.
    levels : of a category, those that are an input each.
    reference : of a category, the level for which all its inputs are zero, if it has one.
    fill : what takes the place of a number that is missing.
    flagged : whether an input of its own says that the number is missing.
    """

    name: str
    kind: str = NUMBER
    levels: tuple[str, ...] = ()
    reference: str = ""
    fill: float = 0.0
    flagged: bool = False

    @property
    def features(self) -> list[str]:
        """The names of its inputs."""
        if self.kind == CATEGORY:
            return [f"{self.name}={level}" for level in self.levels]
        return [self.name] + [f"{self.name}={MISSING_LEVEL}"] * self.flagged


@dataclass(frozen=True)
class Label:
    """The column that is predicted.

    Parameters
    ----------
    classes : their names, if they are words; such as are numbered have none.
    mean, scale : of labels that are numbers: the model's are `(label - mean) / scale`.
    """

    name: str = "label"
    classes: tuple[str, ...] = ()
    mean: float = 0.0
    scale: float = 1.0

    def original(self, values: V) -> V:
        """The model's numbers, an array or a tensor, in the label's unit."""
        with np.errstate(over="ignore"):  # what no number can hold is infinite
            return values * self.scale + self.mean  # type: ignore[operator,return-value]


@dataclass(frozen=True)
class Preparation:
    """The way of raw columns to a model's inputs.

    Parameters
    ----------
    columns, label : as they are in the table.
    missing : what is done about missing cells: `refuse`, `mean` or `flag`.
    scaling : whose mean and spread count: `federated`, `user` (of each its own) or `none`.
    shift, scale : for each input: the model's is `(input - shift) * scale`.
    numbers : whether labels are numbers.
    """

    columns: tuple[Column, ...]
    label: Label = Label()
    missing: str = "refuse"
    scaling: str = UNSCALED
    shift: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    numbers: bool = False

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The names of the model's inputs."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def scaled_numbers(self) -> bool:
        """Tell whether labels are numbers of a table that is standardised."""
        return self.numbers and self.scaling != UNSCALED

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the raw columns."""
        return tuple(column.name for column in self.columns)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, if they have any."""
        return self.label.classes

    # The wire, and files.

    def json(self) -> dict[str, Any]:
        """The fields as JSON can hold them; `read` takes them back."""
        return dataclasses.asdict(self)

    @classmethod
    def read(cls, plain: object) -> Preparation:
        """The inverse of `json`; BadColumns if it cannot be that, whoever wrote it."""
        from corsage.core.tables.preparation_text import read_preparation  # which knows this class

        return read_preparation(plain)

    # From raw cells to the model and back.

    def inputs(self, columns: Mapping[str, Any] | Array | Sequence[Any]) -> Array:
        """Raw cells as the model's inputs (n, d): columns by name, or rows in the order of the
        columns; a column that is not needed is let go. DataError on what cannot be."""
        return self.scaled(self.expanded(*coded(self.columns, columns, self.missing == "refuse")))

    def labels(self, column: Iterable[Any]) -> Array:
        """Raw labels as the model's: the numbers of classes, or standardised numbers."""
        words = list(column)
        if not self.classes:
            given = np.array([number(word, self.label.name, i) for i, word in enumerate(words)])
            return self.standard(given) if self.numbers else given.astype(np.int64)
        place = {name: i for i, name in enumerate(self.classes)}
        unknown = [name for name in map(word_of, words) if name not in place]
        if unknown:
            known = ", ".join(self.classes[:12])
            raise DataError(f"{self.label.name}: {unknown[0]!r} is no class; there are: {known}.")
        return np.array([place[word_of(word)] for word in words], np.int64)

    def standard(self, labels: Array) -> Floats:
        """Labels that are numbers, as the model predicts them."""
        return np.asarray((labels - self.label.mean) / self.label.scale, np.float64)

    def original(self, values: V) -> V:
        """The model's numbers in the label's unit."""
        return self.label.original(values)

    def expanded(self, x: Floats, levels: Sequence[tuple[str, ...]]) -> Floats:
        """Inputs before they are scaled.

        Parameters
        ----------
        x : cells (n, columns), in this order; words by their place in `levels`; NaN is missing.
        levels : for each column, the words that the cells of a category number.
        """
        if all(column.kind != CATEGORY and not column.flagged for column in self.columns):
            return np.where(np.isnan(x), np.array([column.fill for column in self.columns]), x)
        out = np.zeros((len(x), len(self.features)))
        at = 0
        for i, column in enumerate(self.columns):
            cells, gaps = x[:, i], np.isnan(x[:, i])
            if column.kind == CATEGORY:
                place = {level: at + k for k, level in enumerate(column.levels)}
                own = np.array([place.get(level, -1) for level in levels[i]] or [-1], np.int64)
                target = np.where(gaps, place.get(MISSING_LEVEL, -1), own[codes(cells)])
                rows = np.flatnonzero(target >= 0)
                out[rows, target[rows]] = 1.0
            else:
                out[:, at] = np.where(gaps, column.fill, cells)
                if column.flagged:
                    out[:, at + 1] = gaps
            at += len(column.features)
        return out

    def scaled(self, inputs: Floats) -> Array:
        """Inputs as the model sees them, with all digits that the data have."""
        out: Floats = inputs - np.array(self.shift)
        out *= np.array(self.scale)  # in place: of millions of rows a copy less
        return out

    def own(self, inputs: Floats, labels: Array) -> Preparation:
        """By the mean and spread of one user's own training rows, before they are scaled."""
        moments = [of_numbers(column) for column in inputs.T]
        shift, scale = zip(
            *(
                (0.0, 1.0) if indicator else standard_of(m)
                for m, indicator in zip(moments, self.indicators, strict=True)
            ),
            strict=True,
        ) if moments else ((), ())  # fmt: skip
        label = self.label
        if self.numbers:
            mean, factor = standard_of(of_numbers(labels))
            label = dataclasses.replace(label, mean=mean, scale=1 / factor)
        return dataclasses.replace(self, shift=shift, scale=scale, label=label)

    @property
    def indicators(self) -> list[bool]:
        """Mark the inputs that are 0 or 1: they are left as they are."""
        return [
            column.kind == CATEGORY or i > 0
            for column in self.columns
            for i in range(len(column.features))
        ]

    # Linear models.

    def linear(self) -> tuple[Floats, Floats]:
        """(A, a) with A (w, b) + a the coefficients and the intercept in the original units, for
        those of a linear model with one output; A C A' is the covariance for theirs C."""
        d, unit = len(self.features), self.label.scale
        shift, scale = np.array(self.shift), np.array(self.scale)
        matrix = np.zeros((d + 1, d + 1))
        matrix[np.arange(d), np.arange(d)] = unit * scale
        matrix[d, :d] = -unit * scale * shift
        matrix[d, d] = unit
        return matrix, np.append(np.zeros(d), self.label.mean)


def of_numbers(numbers: Array) -> Moments:
    """The moments of numbers that are not NaN."""
    known = np.asarray(numbers, np.float64)
    known = known[~np.isnan(known)]
    if not len(known):
        return Moments()
    size = float(np.abs(known).max()) or 1.0  # squares of huge numbers are finite
    if not 1e-140 < size < 1e140:
        known = known / size
    else:
        size = 1.0
    mean = float(known.mean())
    return Moments(len(known), mean * size, float(np.sqrt(np.square(known - mean).mean())) * size)


def standard_of(moments: Moments, centred: bool = True) -> tuple[float, float]:
    """Shift and scale that give mean 0 and spread 1; a constant is not scaled.

    Not `centred`, zero stays zero: a model without intercept could not make up for a shift.
    """
    mean, std = moments.mean, moments.std
    if not centred:
        size = math.hypot(mean, std)
        return 0.0, 1 / size if size > 1 / MOST_SCALE else 1.0
    flat = std <= CONSTANT_SPREAD * abs(mean) or std < 1 / MOST_SCALE
    return mean, 1.0 if flat else 1 / std


def codes(cells: Floats) -> Ints:
    """The numbers of levels; a missing one is any."""
    return np.nan_to_num(cells, nan=0.0).astype(np.int64)
