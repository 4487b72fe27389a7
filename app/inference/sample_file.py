"""A file of rows to predict: its columns as they are, and what of them is whose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corsage.core.configuration.config import Config
from corsage.core.errors import DataError
from corsage.datasets.columns.dialect import COMMA, Dialect, dialect_of
from corsage.datasets.columns.dialect import rows as lines_of
from corsage.datasets.npzfile import NO_ARRAYS, unread


@dataclass(frozen=True)
class Rows:
    """The rows of a file.

    Parameters
    ----------
    names : the columns; none of an array.
    cells : the words of each row, or an array of samples.
    dialect : how the file is written.
    """

    names: list[str]
    cells: NDArray[Any]
    dialect: Dialect = Dialect()

    def __len__(self) -> int:
        return len(self.cells)

    def column(self, name: str) -> NDArray[Any] | None:
        """A column by its name, if it is there."""
        return self.cells[:, self.names.index(name)] if name in self.names else None

    def pick(self, places: Sequence[int]) -> Rows:
        """Some of the rows."""
        return Rows(self.names, self.cells[list(places)], self.dialect)

    def words(self) -> NDArray[Any]:
        """The cells, numbers with a decimal point."""
        if not self.dialect.decimal_comma:
            return self.cells
        pointed = [[pointed_out(cell) for cell in line] for line in self.cells]
        return np.array(pointed, object).reshape(self.cells.shape)


def pointed_out(cell: str) -> str:
    """A number with a decimal comma as one with a point; any other cell as it is."""
    return cell.replace(",", ".") if COMMA.fullmatch(cell) else cell


def read_rows(path: Path) -> Rows:
    """A CSV file with a header, or an array in an NPY or NPZ file (there `x`)."""
    if not path.is_file():
        raise DataError(f"{path}: there is no such file.")
    if path.suffix in (".npy", ".npz"):
        return Rows([], array_in(path))
    dialect = dialect_of(path)
    (_, head), *lines = [*lines_of(path, dialect.delimiter)] or [(0, [])]
    if not lines:
        raise DataError(f"{path}: no rows below the header.")
    names = [name.strip() for name in head]
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(f"{path}: the column {twice[0]!r:.60} is there twice; rename one.")
    for number, line in lines:
        if len(line) != len(names):
            why = f"{len(line)} cells, the header has {len(names)}"
            raise DataError(f"{path}, line {number}: {why}.")
    cells = np.array([[cell.strip() for cell in line] for _, line in lines], object)
    return Rows(names, cells, dialect)


def array_in(path: Path) -> NDArray[Any]:
    """The samples of an array file; nothing in it is executed."""
    try:
        loaded = np.load(path, allow_pickle=False)
        found = np.asarray(loaded if isinstance(loaded, np.ndarray) else loaded["x"])
    except (OSError, *NO_ARRAYS) as error:
        raise DataError(f"{path}: no array x of samples in it ({unread(error)}).") from error
    if not found.ndim or found.dtype.kind not in "biuf":
        kind = f"shape {found.shape} and type {found.dtype}"
        raise DataError(f"{path}: x is of {kind}; expected samples of numbers.")
    return found


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
    cells = rows.words()[:, [rows.names.index(name) for name in names]]
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
