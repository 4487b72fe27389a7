"""The cells of a CSV file as numbers, column by column; words are numbered.

numpy's C reader takes a file of numbers in one pass. What it cannot take, such as words, gaps and
decimal commas (`Dialect`), is read row by row, some thousand rows at once.
"""

from __future__ import annotations

import csv
import math
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from corsage.core.arrays import Floats
from corsage.core.errors import DataError
from corsage.core.tables.column_facts import is_missing

CHUNK_ROWS = 4096
"""Rows that are read at once."""


class Codes:
    """Numbers the different words of a text column in the order in which they appear."""

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}

    def __call__(self, word: str) -> float:
        """The word's number."""
        return self.codes.setdefault(word.strip(), len(self.codes))

    @property
    def words(self) -> list[str]:
        """The words, by their numbers."""
        return list(self.codes)


@dataclass
class Cells:
    """The cells of a file.

    Parameters
    ----------
    numbers : (rows, columns); NaN where a number is missing, 0 in columns that nobody wants.
    words : of the columns of words, by place: their cells are numbers of these.
    """

    numbers: Floats
    words: dict[int, Codes] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """A file, how it is written, where its rows begin, and what its columns are called."""

    path: Path
    dialect: Dialect
    names: Sequence[str]
    header_lines: int

    def rows(self) -> list[tuple[int, list[str]]]:
        """The first rows below the header."""
        found = islice(rows(self.path, self.dialect.delimiter), DIALECT_ROWS + 1)
        return [row for row in found if row[0] > self.header_lines]


def read_cells(place: Place, text: Collection[int], idle: Collection[int]) -> Cells:
    """All cells; `text` are columns that are words for certain, `idle` those that nobody wants."""
    text = {*text, *wordy(place, {*text, *idle})}
    found = None if place.dialect.decimal_comma else quickly(place, text, idle)
    return found or row_by_row(place, text, idle)


def wordy(place: Place, known: Collection[int]) -> set[int]:
    """The columns in whose first cells there is a word."""
    found = set()
    for _, row in place.rows():
        for i, cell in enumerate(row[: len(place.names)]):
            if i not in known and i not in found and not numeric(cell, place.dialect):
                found.add(i)
    return found


def numeric(cell: str, dialect: Dialect) -> bool:
    """Tell whether a cell is a number, or missing."""
    try:
        float("x" if "_" in cell else dialect.number(cell))  # Python reads 1_000, numpy does not
    except ValueError:
        return is_missing(cell)
    return True


def quickly(place: Place, text: Collection[int], idle: Collection[int]) -> Cells | None:
    """By numpy's reader, a file whose numbers are all there; None if it is no such file."""
    coded = {i: Codes() for i in text}
    converters: dict[int | str, Callable[[str], float]] = dict.fromkeys(idle, nothing)
    converters.update(coded.items())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # "input contained no data": said below
            cells = np.loadtxt(
                place.path, np.float64, comments=None, delimiter=place.dialect.delimiter,
                skiprows=place.header_lines, ndmin=2, encoding=ENCODING, quotechar='"',
                converters=converters or None,
            )  # fmt: skip
    except ValueError:  # UnicodeDecodeError is one too
        return None
    good = len(cells) and cells.shape[1] == len(place.names) and np.isfinite(cells).all()
    return Cells(cells, coded) if good else None


def nothing(_: str) -> float:
    """Any word, as a number."""
    return 0.0


def row_by_row(place: Place, text: Collection[int], idle: Collection[int]) -> Cells:
    """The same for any file; again from its beginning if a word comes late."""
    width, blocks = len(place.names), list[Floats]()
    coded, late = {i: Codes() for i in text}, set[int]()
    reader = rows(place.path, place.dialect.delimiter)
    while chunk := list(islice(reader, CHUNK_ROWS)):
        chunk = [row for row in chunk if row[0] > place.header_lines]
        for line, row in chunk:
            if len(row) != width:
                raise DataError(
                    f"{place.path}: line {line}: {len(row)} cells; the header has {width}."
                )
        block = np.zeros((len(chunk), width))
        for i, cells in enumerate(zip(*(row for _, row in chunk), strict=True)):
            if i in coded:
                block[:, i] = [coded[i](cell) for cell in cells]
            elif i not in idle and i not in late:
                found = as_numbers(cells, place.dialect)
                late |= {i} if found is None else set()
                block[:, i] = 0.0 if found is None else found
        blocks.append(block)
    if late:
        return row_by_row(place, {*text, *late}, idle)
    if not sum(map(len, blocks)):
        raise DataError(f"{place.path}: no rows below the header.")
    return Cells(np.concatenate(blocks), coded)


def as_numbers(cells: Sequence[str], dialect: Dialect) -> list[float] | None:
    """Cells as numbers, NaN where one is missing; None if one of them is a word."""
    if dialect.decimal_comma:
        cells = [cell.replace(",", ".") for cell in cells]
    try:
        if "_" not in "".join(cells):
            return list(map(float, cells))
    except ValueError:
        pass
    found = []
    for cell in cells:
        if is_missing(cell):
            found.append(math.nan)
        elif not numeric(cell, dialect):
            return None
        else:
            found.append(float(cell))
    return found


def locate(place: Place, column: int, is_it: Callable[[str], bool]) -> tuple[int, str]:
    """Line and word of the first cell of a column that is it."""
    for line, row in rows(place.path, place.dialect.delimiter):
        if line > place.header_lines and is_it(row[column]):
            return line, row[column]
    return 0, ""


def text_of(cells: Cells, column: int) -> np.ndarray[tuple[int], np.dtype[np.str_]]:
    """A column's words again."""
    words = np.array(cells.words[column].words or [""], dtype=np.str_)
    return words[cells.numbers[:, column].astype(np.int64)]


ENCODING = "utf-8-sig"  # UTF-8, with or without the mark that spreadsheets put first
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
DIALECT_ROWS = 200
"""Rows by which a file is judged."""
COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?")
POINT = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")


@dataclass(frozen=True)
class Dialect:
    """The delimiter of the cells, and whether 3,14 is a number."""

    delimiter: str = ","
    decimal_comma: bool = False

    @property
    def note(self) -> str:
        """A line on it, where it is worth one."""
        said = [f"cells between {DELIMITERS[self.delimiter]}"] * (self.delimiter != ",")
        return ", ".join(said + ["decimal commas"] * self.decimal_comma)

    def number(self, word: str) -> str:
        """A number's word as Python writes it."""
        return word.replace(",", ".") if self.decimal_comma else word

    def written(self, value: Any) -> Any:
        """A value as the file would have it: numbers with its decimal sign."""
        numeric = isinstance(value, Real) and self.decimal_comma
        return str(value).replace(".", ",") if numeric else value


def rows(path: Path, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of every row in which there is anything."""
    return ((line, row) for line, row in every_row(path, delimiter) if not is_blank(row))


def is_blank(row: Iterable[str]) -> bool:
    """Tell whether there is nothing in a row."""
    return not any(map(str.strip, row))


def every_row(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of every row, blank ones too."""
    try:
        with path.open(encoding=ENCODING, newline="") as file:
            reader = csv.reader(file, delimiter=delimiter)
            for row in reader:
                yield reader.line_num, row
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). Check data-file.") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not UTF-8 text ({error.reason}); save it as UTF-8 (spreadsheets: CSV UTF-8)."
        ) from error
    except csv.Error as error:
        raise DataError(f"{path}: not a CSV file ({error}).") from error


def dialect_of(path: Path) -> Dialect:
    """The dialect of a file, judged by its first rows."""
    samples = {d: sample_of(path, d) for d in DELIMITERS}
    delimiter = max(DELIMITERS, key=lambda d: fitness(samples[d]))
    return Dialect(delimiter, has_commas(path, samples[delimiter][1:]))


def sample_of(path: Path, delimiter: str) -> list[list[str]]:
    """The first rows as one delimiter cuts them; none if what it leaves whole is no cell."""
    try:
        return [row for _, row in islice(rows(path, delimiter), DIALECT_ROWS)]
    except DataError as error:
        if isinstance(error.__cause__, csv.Error):
            return []
        raise


def fitness(sample: list[list[str]]) -> tuple[bool, bool, int]:
    """A rank of ways to cut rows: several cells, as many as the header has; the most of them."""
    width = len(sample[0]) if sample else 0
    even = sum(len(row) == width for row in sample) >= 0.9 * len(sample)
    return width > 1, even, width


def has_commas(path: Path, sample: list[list[str]]) -> bool:
    """Tell whether decimals have a comma, 3,14; DataError if 1,234 may be thousands too."""
    cells = [cell.strip() for row in sample for cell in row]
    found = [cell for cell in cells if COMMA.fullmatch(cell)]
    if not found or any(POINT.fullmatch(cell) for cell in cells):
        return False
    if all(THOUSANDS.fullmatch(cell) for cell in found):
        raise DataError(
            f"{path}: {found[0]!r} may be {found[0].replace(',', '.')} or "
            f"{found[0].replace(',', '')}; write numbers with a decimal point and without anything "
            "between thousands."
        )
    return True
