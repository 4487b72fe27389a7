"""Raw cells of whatever type, as numbers: words by their place among the words of their column."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from logging import getLogger
from typing import TYPE_CHECKING, Any

import numpy as np

from corsage.core.arrays import Array, Floats
from corsage.core.errors import DataError
from corsage.core.tables.column_facts import CATEGORY, MISSING_LEVEL, in_order, is_missing

if TYPE_CHECKING:
    from corsage.core.tables.preparation import Column

Raw = Mapping[str, Any] | Array | Sequence[Any]
"""Columns by name, as a frame or a dictionary has them, or rows in the order of the columns."""
log = getLogger("corsage")


class BadCell(DataError):
    """A cell that is no number: of which column, in which row, and what is wrong."""

    def __init__(self, column: str, row: int, what: str) -> None:
        super().__init__(f"column {column!r}: row {row}{what}")
        self.column, self.row, self.what = column, row, what


def coded(
    wanted: Sequence[Column], columns: Raw, gapless: bool = False
) -> tuple[Floats, list[tuple[str, ...]]]:
    """Cells (n, columns) in the order of the wanted ones, words numbered by the levels beside."""
    found = by_name([column.name for column in wanted], columns)
    sizes = {len(cells) for cells in found}
    if len(sizes) > 1:
        raise DataError(f"columns of different lengths: {sorted(sizes)}.")
    x, levels = np.empty((max(sizes, default=height(columns)), len(found))), []
    for i, (column, cells) in enumerate(zip(wanted, found, strict=True)):
        if column.kind == CATEGORY:
            words = [MISSING_LEVEL if empty(cell) else word_of(cell) for cell in cells]
            own = in_order(set(words) - {MISSING_LEVEL})
            place = {word: float(k) for k, word in enumerate(own)}
            x[:, i] = [place.get(word, np.nan) for word in words]
            note_unseen(column, own)
            levels.append(own)
        else:
            x[:, i] = numbers_of(cells, column.name)
            levels.append(())
        if gapless:
            refuse_gaps(column, np.isnan(x[:, i]))
    return x, levels


def by_name(names: Sequence[str], columns: Any) -> list[Any]:
    """The cells of each column, which are given by name or in order."""
    if hasattr(columns, "columns") or isinstance(columns, Mapping):  # a frame has its names too
        lacking = [name for name in names if name not in columns]
        if lacking:
            raise DataError(f"no column {', '.join(map(repr, lacking[:5]))}; it is needed.")
        return [list(columns[name]) for name in names]
    rows = columns if isinstance(columns, np.ndarray) else list(columns)
    width = {len(row) for row in rows} if len(rows) else {len(names)}
    if width != {len(names)}:
        said = ", ".join(map(str, sorted(width)))
        raise DataError(f"rows of {said} cells; {len(names)} are needed: {', '.join(names[:8])}.")
    if isinstance(rows, np.ndarray):
        return [rows[:, i] for i in range(len(names))]
    return [[row[i] for row in rows] for i in range(len(names))]


def height(columns: Any) -> int:
    """The number of rows, where none of their columns is wanted."""
    if isinstance(columns, Mapping):
        return max((len(cells) for cells in columns.values()), default=0)
    return len(columns)


def numbers_of(cells: Any, name: str) -> Floats:
    """Cells as numbers, NaN where one is missing."""
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf":
        found = cells.astype(np.float64)
        if np.isinf(found).any():
            raise BadCell(name, int(np.isinf(found).argmax()), " is infinite.")
        return found
    return np.array(
        [math.nan if empty(cell) else number(cell, name, row) for row, cell in enumerate(cells)]
    )


def number(cell: Any, name: str, row: int) -> float:
    """A cell as a number, or DataError."""
    try:
        found = float(cell)
    except (TypeError, ValueError):
        raise BadCell(name, row, f": {cell!r:.60} is not a number.") from None
    if not math.isfinite(found):
        raise BadCell(name, row, f": {cell!r:.60} is not finite.")
    return found


def empty(cell: Any) -> bool:
    """Tell whether a cell says that nothing is known."""
    if isinstance(cell, int | float | np.number):
        return bool(np.isnan(cell))
    return cell is None or is_missing(str(cell))


def word_of(cell: Any) -> str:
    """A cell as a word: 7, 7.0 and "7" are one, True and "true" too."""
    if isinstance(cell, bool | np.bool_):
        return str(bool(cell)).lower()
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))
    word = str(cell).strip()
    return word.lower() if word.lower() in ("true", "false") else word


def note_unseen(column: Column, levels: Iterable[str]) -> None:
    """Say which words nobody had when the levels were agreed on."""
    unseen = [word for word in levels if word not in (*column.levels, column.reference)]
    if unseen:
        log.warning(
            "column %r: %s %s not there when the models were trained; all its inputs are 0.",
            column.name, ", ".join(map(repr, unseen[:5])), "was" if len(unseen) == 1 else "were",
        )  # fmt: skip


def refuse_gaps(column: Column, gaps: Array) -> None:
    """Refuse missing cells where nothing was agreed on for them."""
    if gaps.any():
        what = " is missing; fill it in, or train with missing=mean or flag."
        raise BadCell(column.name, int(gaps.argmax()), what)
