"""The dialect of a CSV file: its delimiter, and whether its decimals have a comma."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from numbers import Real
from pathlib import Path
from typing import Any

from corsage.core.errors import DataError

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
