"""Facts on the columns of a node's table: names, kinds, levels, and sums over its rows.

It is part of a node's introduction, and no word of it is believed: `read_facts` takes it apart
field by field, each within its bounds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from corsage.core.errors import line

NUMBER, CATEGORY, EMPTY = "number", "category", "empty"
COLUMN_KINDS = (NUMBER, CATEGORY, EMPTY)
NUMBERED_CLASSES = "classes"
"""The kind of labels that are numbered from 0; those that are words are categories."""
MISSING_LEVEL = "(missing)"
"""The level of a category whose cell is empty."""
MISSING_WORDS = frozenset(
    ("", "na", "n/a", "#n/a", "<na>", "nan", "-nan", "null", "none", "#na", "nil", "?", ".")
)
"""Cells, in lower case, that say that nothing is known."""
MOST_COLUMNS = 100_000
MOST_LEVELS = 1_000
"""Levels of one category."""
MOST_WORD_CHARACTERS = 200
"""Characters of the name of a column, and of a level."""
MOST_TABLE_TEXT = 2**24
"""Characters of all that a node says of its table."""
LARGEST_CELL = 1e300
"""No number of a table is larger: differences of two of them are finite."""


class BadColumns(ValueError):
    """Facts on a table that cannot be used: which field, and why."""


@dataclass(frozen=True)
class Moments:
    """The count of some numbers, their mean, and their standard deviation."""

    count: int = 0
    mean: float = 0.0
    std: float = 0.0


@dataclass(frozen=True)
class ColumnFacts:
    """Facts on one column.

    Parameters
    ----------
    kind : of its cells; one without any is empty, and may be anything elsewhere.
    levels : the words of a category.
    gaps : whether cells of training rows are missing.
    moments : of the numbers of training rows; none were counted if the count is 0.
    """

    name: str
    kind: str = NUMBER
    levels: tuple[str, ...] = ()
    gaps: bool = False
    moments: Moments = Moments()


@dataclass(frozen=True)
class TableFacts:
    """Facts on a node's table: the columns that are inputs, and the labels."""

    columns: tuple[ColumnFacts, ...]
    label: ColumnFacts

    def json(self) -> str:
        """As the introduction has it."""
        return json.dumps([_plain(column) for column in (self.label, *self.columns)])

    @property
    def of_numbers(self) -> bool:
        """Tell whether the labels are numbers."""
        return self.label.kind == NUMBER

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns that are inputs."""
        return tuple(column.name for column in self.columns)


def is_missing(word: str) -> bool:
    """Tell whether a cell says that nothing is known."""
    return word.strip().lower() in MISSING_WORDS


def in_order(levels: Iterable[str]) -> tuple[str, ...]:
    """Levels in an order that depends on nothing else: numbers by size, words by letters."""
    words = sorted(levels)
    try:
        return tuple(sorted(words, key=float))
    except ValueError:
        return tuple(words)


def merged(found: Sequence[Moments]) -> Moments:
    """The moments of all numbers together, the same in whatever order they come.

    They are rounded to 12 digits, so that it does not matter which node counted what.
    """
    some = [m for m in found if m.count]
    count = sum(m.count for m in some)
    if not count:
        return Moments()
    size = max(max(abs(m.mean), m.std) for m in some) or 1.0  # squares of huge numbers are finite
    mean = math.fsum(m.count * (m.mean / size) for m in some) / count
    spread = math.fsum(m.count * ((m.std / size) ** 2 + (m.mean / size - mean) ** 2) for m in some)
    std = math.sqrt(spread / count)
    return Moments(count, rounded(mean * size), rounded(std * size))


def rounded(number: float) -> float:
    """A number to 12 digits."""
    return float(f"{number:.12g}")


def _plain(column: ColumnFacts) -> list[Any]:
    m = column.moments
    return [column.name, column.kind, list(column.levels), column.gaps, m.count, m.mean, m.std]


def read_facts(words: object, rows: int) -> TableFacts:
    """Read the facts on a table of so many training rows; BadColumns if they cannot be."""
    if type(words) is not str or len(words) > MOST_TABLE_TEXT:
        raise BadColumns(f"no text of at most {MOST_TABLE_TEXT} characters")
    try:
        found = json.loads(words)
    except (ValueError, RecursionError):
        raise BadColumns("no JSON") from None
    if type(found) is not list or not 1 <= len(found) <= MOST_COLUMNS + 1:
        raise BadColumns(f"no list of a label and at most {MOST_COLUMNS} columns")
    label, *columns = (read_column(one, rows, at) for at, one in enumerate(found))
    names = [column.name for column in columns]
    if len(set(names)) < len(names):
        raise BadColumns("a column is named twice")
    return TableFacts(tuple(columns), label)


def read_column(plain: object, rows: int, at: int) -> ColumnFacts:
    """One column; number 0 is the label."""
    if type(plain) is not list or len(plain) != 7:
        raise BadColumns(f"column {at}: no list of 7 values")
    name, kind, levels, gaps, *numbers = plain
    where = f"column {line(repr(name), 60)}"
    read_word(name, where)
    if kind not in (COLUMN_KINDS if at else (NUMBER, CATEGORY, NUMBERED_CLASSES)):
        raise BadColumns(f"{where}: {line(repr(kind), 30)} is no kind of column")
    if type(gaps) is not bool:
        raise BadColumns(f"{where}: {line(repr(gaps), 30)} is not true or false")
    read_levels(levels, where, kind)
    return ColumnFacts(name, kind, tuple(levels), gaps, read_moments(numbers, where, rows))


def read_levels(levels: object, where: str, kind: str) -> None:
    """Refuse what cannot be the levels of a column."""
    if type(levels) is not list or len(levels) > MOST_LEVELS:
        raise BadColumns(f"{where}: no list of at most {MOST_LEVELS} levels")
    for level in levels:
        read_word(level, f"{where}: level {line(repr(level), 60)}")
    if len(set(levels)) < len(levels) or (levels and kind != CATEGORY):
        raise BadColumns(f"{where}: a level is there twice, or it is no category")


def read_word(word: object, where: str) -> None:
    """Refuse what cannot be a name."""
    if type(word) is not str or not word.strip() or word != word.strip():
        raise BadColumns(f"{where} is no name")
    if len(word) > MOST_WORD_CHARACTERS or not word.isprintable():
        raise BadColumns(f"{where} is too long, or has characters that cannot be printed")


def read_moments(numbers: Sequence[object], where: str, rows: int) -> Moments:
    """Count, mean and standard deviation, of at most so many rows."""
    count, mean, std = numbers
    if type(count) is not int or not 0 <= count <= rows:
        raise BadColumns(f"{where}: {line(repr(count), 30)} is no count of at most {rows} rows")
    for number in (mean, std):
        if type(number) not in (int, float) or not -LARGEST_CELL <= number <= LARGEST_CELL:  # type: ignore[operator]
            raise BadColumns(f"{where}: {line(repr(number), 30)} is no finite number")
    mean, std = float(mean), float(std)  # type: ignore[arg-type]
    if std < 0 or (not count and (mean or std)):
        raise BadColumns(f"{where}: its sums are not possible")
    return Moments(count, mean, std)
