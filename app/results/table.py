"""A file of rows to predict: its columns as they are, and what of them is whose."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corsage.core.config import Config
from corsage.core.errors import DataError

DELIMITERS = ",;\t|"
ENCODING = "utf-8-sig"


@dataclass(frozen=True)
class Rows:
    """The rows of a file.

    Parameters
    ----------
    names : the columns; none of an array.
    cells : the words of each row, or an array of samples.
    """

    names: list[str]
    cells: NDArray[Any]

    def __len__(self) -> int:
        return len(self.cells)

    def column(self, name: str) -> NDArray[Any] | None:
        """A column by its name, if it is there."""
        return self.cells[:, self.names.index(name)] if name in self.names else None

    def pick(self, places: Sequence[int]) -> Rows:
        """Some of the rows."""
        return Rows(self.names, self.cells[list(places)])


def read_rows(path: Path) -> Rows:
    """A CSV file with a header, or an array in an NPY or NPZ file (there `x`)."""
    if not path.is_file():
        raise DataError(f"{path}: there is no such file.")
    if path.suffix in (".npy", ".npz"):
        return Rows([], array_in(path))
    try:
        with path.open(newline="", encoding=ENCODING) as file:
            first = file.readline()
            file.seek(0)
            delimiter = max(DELIMITERS, key=first.count)
            lines = [line for line in csv.reader(file, delimiter=delimiter) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read ({error}).") from error
    if len(lines) < 2:
        raise DataError(f"{path}: no rows below the header.")
    names = [name.strip() for name in lines[0]]
    for number, line in enumerate(lines[1:], 2):
        if len(line) != len(names):
            raise DataError(
                f"{path}, row {number}: {len(line)} cells, the header has {len(names)}."
            )
    return Rows(names, np.array([[cell.strip() for cell in line] for line in lines[1:]], object))


def array_in(path: Path) -> NDArray[Any]:
    """The samples of an array file; nothing in it is executed."""
    try:
        found = np.load(path, allow_pickle=False)
        return np.asarray(found if isinstance(found, np.ndarray) else found["x"])
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path}: no array x of samples in it ({error}).") from error


def features(rows: Rows, config: Config | None) -> Any:
    """What goes into a model that knows no columns: the numbers of all but those of other uses."""
    if not rows.names:
        return rows.cells
    keys = config.flat() if config else {}
    wanted = [name for name in str(keys.get("feature-columns", "")).split(",") if name]
    used = [str(keys.get(f"{what}-column", what)) for what in ("user", "cluster", "label")]
    names = wanted or [name for name in rows.names if name not in used]
    if missing := [name for name in names if name not in rows.names]:
        raise DataError(f"column {missing[0]}: is missing. There are: {', '.join(rows.names)}.")
    cells = rows.cells[:, [rows.names.index(name) for name in names]]
    try:
        return cells.astype(np.float64)
    except ValueError:
        at = next(at for at in np.ndindex(cells.shape) if not is_number(str(cells[at])))
        raise DataError(
            f"row {at[0] + 2}, column {names[at[1]]}: {cells[at]!r:.40} is not a number."
        ) from None


def is_number(cell: str) -> bool:
    """Whether a cell is a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True
