"""Columns as what they are, numbers or categories; what can be neither is refused, with advice."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from corsage.core.arrays import Array, Floats
from corsage.core.errors import DataError
from corsage.core.tables.column_facts import (
    CATEGORY,
    EMPTY,
    LARGEST_CELL,
    MOST_LEVELS,
    MOST_WORD_CHARACTERS,
    NUMBER,
    NUMBERED_CLASSES,
    ColumnFacts,
    in_order,
    is_missing,
)

DATES = re.compile(
    r"\d{4}-\d{1,2}(-\d{1,2})?([T ].*)?|\d{1,2}[./-]\d{1,2}[./-]\d{2,4}([T ].*)?"
    r"|\d{4}/\d{1,2}/\d{1,2}.*|\d{1,2}:\d{2}(:\d{2})?"
)
CURRENCY = "[$\u20ac\u00a3\u00a5]"
BODY = r"(\d{1,3}(?:[,.'\u2019 \u00a0\u202f]\d{3})+|\d+)?([.,]\d+)?"
DRESSED = re.compile(
    rf"(?=.*\d){CURRENCY}? ?[-+\u2212\u2013]? ?{CURRENCY}? ?{BODY} ?(%|{CURRENCY})?"
)
UNIT = re.compile(r"[-+]?\d+(?:[.,]\d+)? ?([^\d\s.,:/-]+)")
SOME_UNITS = 8
"""Few numbers with a unit may be names: 100m, 200m, 400m."""
BARE_NUMBERS = (
    "write numbers with digits and a decimal point and nothing else: no unit, no currency, no "
    "percent, nothing between thousands"
)
FREE_TEXT = 50
"""Words beyond so many that differ in more than half of the rows are no categories."""
IDS = re.compile(
    r"(.*[_ .-])?(?i:id|index|nr|no|key|row_?names?)|.*[a-z](Id|ID|Key)|(?i:unnamed.*)"
)
SOME_ROWS = 20
MANY_CLASSES = 20
"""More classes than a table has as a rule."""
TRUTHS = ("true", "false")


@dataclass(frozen=True)
class Source:
    """The origin of columns, for messages.

    Parameters
    ----------
    where : the file, or what the user calls it.
    locate : where the first cell of a column is that a test finds, in words.
    gaps : whether missing cells are taken.
    largest : beyond it no number can be held.
    """

    where: str
    locate: Callable[[str, Callable[[str], bool]], str]
    gaps: bool
    largest: float = LARGEST_CELL

    def error(self, name: str, is_it: Callable[[str], bool], why: str) -> DataError:
        """The error that names the first such cell of a column."""
        return DataError(f"{self.where}: {self.locate(name, is_it)} is {why}.")


def numbers(name: str, column: Floats, source: Source) -> tuple[Floats, ColumnFacts]:
    """A column of numbers."""
    gaps = np.isnan(column)
    kind = EMPTY if len(column) and gaps.all() else NUMBER
    if (~gaps & ~(np.abs(column) <= source.largest)).any():
        far = f"not a finite float{64 if source.largest == LARGEST_CELL else 32} number"
        raise source.error(
            name, lambda word: beyond(word, source.largest), f"{far}; fill it in, or drop the row"
        )
    if gaps.any() and not source.gaps:
        all_of_it = f", as is all of the column (drop-columns={name})" if kind == EMPTY else ""
        raise source.error(name, is_missing, f"{EMPTY_CELL}{all_of_it}; {FILL_GAPS}")
    return column, ColumnFacts(name, kind)


NO_CLASS = "not a class; number the classes 0, 1, 2, ..., or set labels=numbers to predict numbers"
EMPTY_CELL = "empty or missing"
FILL_GAPS = "fill it in, drop the row, or set missing=mean or flag"


def beyond(word: str, largest: float) -> bool:
    """Tell whether a word is a number that is too large, or infinite."""
    try:
        return abs(float(word.replace(",", "."))) > largest
    except ValueError:
        return False


def categories(
    name: str, column: Floats, words: Sequence[str], source: Source, forced: bool
) -> tuple[Floats, ColumnFacts]:
    """A column of words, numbered in the order of its levels."""
    words = lowered(words)
    counts = np.bincount(column.astype(np.int64), minlength=len(words))
    gaps = np.array([is_missing(word) for word in words], dtype=bool)
    if gaps[counts > 0].any() and not source.gaps:
        raise source.error(name, is_missing, f"{EMPTY_CELL}; {FILL_GAPS}")
    levels = in_order({word for word, gap in zip(words, gaps, strict=True) if not gap})
    if not forced:
        check_words(name, dict(zip(words, counts.tolist(), strict=False)), levels, source)
    check_levels(name, levels, len(column), source)
    place = {level: float(k) for k, level in enumerate(levels)}
    table = np.array([place.get(word, np.nan) for word in words] or [np.nan])
    return table[column.astype(np.int64)], ColumnFacts(name, CATEGORY, levels)


def lowered(words: Sequence[str]) -> list[str]:
    """Words; those for true and false are written in one way, whoever writes them."""
    if {word.lower() for word in words if not is_missing(word)} <= set(TRUTHS):
        return [word.lower() for word in words]
    return list(words)


def check_words(name: str, counts: dict[str, int], levels: Sequence[str], source: Source) -> None:
    """Refuse dates, and single words among numbers."""
    if levels and all(DATES.fullmatch(level) for level in levels[:20]):
        raise source.error(
            name, lambda word: word.strip() == levels[0],
            "a date; make a number of it, such as an age in days, or leave it out by "
            f"drop-columns={name}",
        )  # fmt: skip
    known = {word: count for word, count in counts.items() if not is_missing(word)}
    unit = common_unit(levels)
    plain = sum(count for word, count in known.items() if unit or is_number(word) or dressed(word))
    odd = [word for word in known if not is_number(word)]
    if odd and 2 * plain > sum(known.values()):
        point = f"; {BARE_NUMBERS}" if unit or dressed(odd[0]) else ""
        raise source.error(
            name, lambda word: word.strip() == odd[0],
            f"not a number, and most others are{point}; correct it, leave the cell empty and set "
            f"missing=mean, or set category-columns={name} if all of them are words",
        )  # fmt: skip


def dressed(word: str) -> bool:
    """Tell whether a word is a number in disguise: 12%, $5, 1,234.5, a typeset minus."""
    return bool(DRESSED.fullmatch(word.strip()))


def common_unit(levels: Sequence[str]) -> str:
    """The unit that many different numbers have behind them: kg of 3 kg, 4 kg, ..."""
    found = [UNIT.fullmatch(level) for level in levels]
    units = {match[1] for match in found if match}
    return units.pop() if all(found) and len(units) == 1 and len(levels) > SOME_UNITS else ""


def is_number(word: str) -> bool:
    """Tell whether a word is a number."""
    try:
        float("x" if "_" in word else word)
    except ValueError:
        return False
    return True


def check_levels(name: str, levels: Sequence[str], rows: int, source: Source) -> None:
    """Refuse words that are texts or names."""
    long = [v for v in levels if len(v) > MOST_WORD_CHARACTERS or not v.isprintable()]
    if long:
        why = "too long" if long[0].isprintable() else "it has a character that cannot be seen"
        raise source.error(
            name, lambda word: word.strip().lower() == long[0].lower(),
            f"no category: {why}; correct it, or drop-columns={name}",
        )  # fmt: skip
    free = len(levels) > FREE_TEXT and 2 * len(levels) > rows
    if free or len(levels) > MOST_LEVELS:
        raise DataError(
            f"{source.where}: column {name!r} has {len(levels)} different words in {rows} rows: "
            "ids or texts are no categories; name it as user-column or cluster-column, or leave "
            f"it out by drop-columns={name}."
        )


def class_names(
    name: str, column: Floats, words: Sequence[str], source: Source
) -> tuple[Array, ColumnFacts]:
    """Labels that are words, as numbers of classes; float64, since some may be missing."""
    return categories(name, column, words, source, forced=False)


def numbered(name: str) -> ColumnFacts:
    """Labels that are numbered classes."""
    return ColumnFacts(name, NUMBERED_CLASSES)


def class_note(label: ColumnFacts, y: Array) -> list[str]:
    """Notes on numbered classes that may be numbers, or do not begin with 0."""
    if label.kind != NUMBERED_CLASSES or not len(y):
        return []
    found, many = [], len(np.unique(y))
    if many > 2:
        found.append(
            f"column {label.name!r}: its {many} different whole numbers are taken for classes; "
            "labels=numbers predicts them as numbers"
        )
    if y.min() > 0:
        found.append(
            "no row has the class 0, which the models have all the same; category-columns="
            f"{label.name} makes classes of those that there are"
        )
    return found


def id_note(name: str, column: Floats) -> str:
    """A line on numbers that seem to number the rows, or to be names of something."""
    if len(column) < SOME_ROWS or not np.isfinite(column).all():
        return ""
    whole = bool(IDS.fullmatch(name)) and bool((column % 1 == 0).all())
    different = len(np.unique(column))
    if (np.diff(column) == 1).all() or (whole and different == len(column)):
        return f"the column {name!r} seems to number the rows; drop-columns={name} leaves it out"
    if whole and different > FREE_TEXT:
        return (
            f"the column {name!r} is taken as a number, though it seems to name something "
            f"({different} whole numbers); drop-columns={name} leaves it out, "
            f"category-columns={name} makes words of it"
        )
    return ""
