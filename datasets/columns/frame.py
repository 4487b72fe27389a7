"""A frame, of pandas or of whoever has its face, as typed columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from corsage.core.arrays import Array, Floats
from corsage.core.errors import DataError
from corsage.core.tables.cells import empty, word_of
from corsage.core.tables.column_facts import ColumnFacts
from corsage.datasets.columns.typed import FREE_TEXT, Source, categories, numbers


def typed_columns(
    frame: Any, names: Sequence[str], where: str, forced: Sequence[str] = ()
) -> tuple[Floats, list[ColumnFacts]]:
    """The columns as cells, words numbered by their levels; what is missing is NaN.

    Parameters
    ----------
    names : the columns that are wanted.
    forced : those that are categories though they are numbers.
    """
    x, facts = np.empty((len(frame), len(names))), []
    for i, name in enumerate(names):
        x[:, i], found = typed_column(frame[name], str(name), where, name in forced)
        facts.append(found)
    return x, facts


def typed_column(
    column: Any, name: str, where: str, forced: bool = False
) -> tuple[Floats, ColumnFacts]:
    """One column as what its type says: numbers, or words; dates are refused."""
    source = Source(where, locator(column), gaps=True)
    if is_date(column):
        raise source.error(name, lambda word: True, DATE)
    if holds_others(column):
        raise source.error(name, lambda word: True, OTHER_CELLS)
    forced = forced or is_category(column)
    if is_numeric(column) and not forced:
        return numbers(name, np.asarray(column.to_numpy(np.float64, na_value=np.nan)), source)
    words = ["" if empty(cell) else word_of(cell) for cell in column]
    text = any(isinstance(cell, str) for cell in column)  # "1" is a word, 1 among None is not
    if not forced and not text and all(map(is_plain, words)):
        return numbers(name, np.array([float(word or "nan") for word in words]), source)
    codes: dict[str, int] = {}
    cells = np.array([float(codes.setdefault(word, len(codes))) for word in words])
    if not forced and len(codes) > FREE_TEXT and all(map(is_plain, codes)):
        raise DataError(
            f"{where}: column {name!r} has {len(codes)} different numbers that are text; make "
            f"numbers of it (pandas.to_numeric), or set category-columns={name}."
        )
    return categories(name, cells, list(codes), source, forced)


DATE = "a date; make a number of it, such as an age in days, or leave it out"
OTHER_CELLS = "neither a number nor a word; make columns of its parts, or leave it out"


def is_date(column: Any) -> bool:
    """Tell whether the type of a column is that of dates, times or spans of time."""
    return getattr(column.dtype, "kind", "O") in "mM" or "datetime" in str(column.dtype)


def is_numeric(column: Any) -> bool:
    """Tell whether the type of a column is that of numbers; truths are words."""
    kind = getattr(column.dtype, "kind", "O")
    return kind in "iuf" and not is_category(column)


def is_category(column: Any) -> bool:
    """Tell whether a column is of categories by its type, though they may be numbers."""
    return str(column.dtype) == "category"


def holds_others(column: Any) -> bool:
    """Tell whether cells are lists, arrays or complex numbers."""
    if getattr(column.dtype, "kind", "O") == "c":
        return True
    return any(
        isinstance(cell, Iterable | complex) and not isinstance(cell, str) for cell in column
    )


def is_plain(word: str) -> bool:
    """Tell whether a word is a number, or nothing."""
    try:
        float("x" if "_" in word else word or "0")
    except ValueError:
        return False
    return True


def locator(column: Any) -> Callable[[str, Callable[[str], bool]], str]:
    """Says where the first cell is that a test finds."""

    def locate(name: str, is_it: Callable[[str], bool]) -> str:
        for row, cell in enumerate(column):
            if is_it("" if empty(cell) else str(cell)):
                return f"row {row}, column {name!r}: {str(cell)[:60]!r}"
        return f"column {name!r}: a cell"

    return locate


def label_column(
    column: Any, name: str, where: str, forced: bool = False, as_numbers: bool = False
) -> tuple[Array, ColumnFacts | None]:
    """Labels, of which none is missing: words as numbers of their classes with what they are,
    numbers as they are, unless they are `forced` to be words."""
    if not forced and (is_date(column) or is_numeric(column)):
        return np.asarray(column.to_numpy()), None
    if as_numbers and not forced and all(is_plain("" if empty(c) else word_of(c)) for c in column):
        forced_numbers = np.array([math.nan if empty(cell) else float(cell) for cell in column])
        return numbers(name, forced_numbers, Source(where, locator(column), gaps=False))[0], None
    found, facts = typed_column(column, name, where, forced)
    if not facts.levels:
        return found, None
    if as_numbers:
        raise Source(where, locator(column), gaps=True).error(
            name, lambda word: not is_plain(word),
            "not a number, and labels=numbers: correct it, or leave labels=numbers out if its "
            "words are classes",
        )  # fmt: skip
    return found.astype(np.int64), facts
