"""A CSV file of one's own: a header, a label column, perhaps user and cluster; the rest features.

numpy's C reader takes the whole file in one pass, the text columns coded as numbers on the way.
Only if that fails is the file read again row by row, to name the line, the column and the word.
"""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from corsage.app.config import DataKeys
from corsage.app.errors import DataError
from corsage.datasets.table import Table, check_users, class_labels, some

FLOAT32_MAX = float(np.finfo(np.float32).max)
ENCODING = "utf-8-sig"  # UTF-8, with or without the mark that spreadsheets put first


@dataclass(frozen=True)
class Columns:
    """The header, and where in it what is found; -1: the file has no such column."""

    names: list[str]
    header_lines: int
    label: int
    user: int
    cluster: int

    @property
    def features(self) -> list[int]:
        """The places of all other columns."""
        taken = (self.label, self.user, self.cluster)
        return [i for i in range(len(self.names)) if i not in taken]


class Codes:
    """Numbers the different words of a text column in the order in which they appear."""

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}

    def __call__(self, word: str) -> float:
        """The word's number."""
        return self.codes.setdefault(word.strip(), len(self.codes))

    def words(self, column: NDArray[np.float64]) -> NDArray[np.str_]:
        """The column's words again."""
        return np.array(list(self.codes), dtype=np.str_)[column.astype(np.int64)]


def load(keys: DataKeys) -> Table:
    """The samples of `data-file`; its user column must be there unless `user-column` is empty."""
    return read(Path(keys.data_file).expanduser(), keys)


def read(path: Path, keys: DataKeys, *, optional: tuple[str, ...] = ()) -> Table:
    """One CSV file; of the columns "user" and "cluster", those in `optional` may be absent."""
    columns = read_header(path, keys, optional)
    coded: dict[int | str, Codes] = {i: Codes() for i in (columns.user, columns.cluster) if i >= 0}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # "input contained no data": said below
            cells = np.loadtxt(
                path, np.float64, comments=None, delimiter=",", skiprows=columns.header_lines,
                ndmin=2, encoding=ENCODING, quotechar='"', converters=coded or None,
            )  # fmt: skip
    except ValueError as error:  # UnicodeDecodeError is one too
        blame(path, columns)
        raise DataError(f"{path}: not a CSV file of numbers ({error}).") from error
    if not len(cells):
        raise DataError(f"{path}: no rows below the header.")
    with np.errstate(over="ignore"):
        x = cells[:, columns.features].astype(np.float32)
    if cells.shape[1] != len(columns.names) or not np.isfinite(x).all():
        blame(path, columns)
    try:
        y, classes = class_labels(cells[:, columns.label], str(path))
    except DataError:
        blame(path, columns)
        raise
    users = coded[columns.user].words(cells[:, columns.user]) if columns.user >= 0 else None
    if users is not None:
        check_users(users, str(path))
    where = columns.cluster
    clusters = coded[where].words(cells[:, where]) if where >= 0 else None
    return Table(x, y, users, clusters, classes, 0.0, 1.0)


def rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of every row that is not blank."""
    try:
        with path.open(encoding=ENCODING, newline="") as file:
            reader = csv.reader(file)
            for row in reader:
                if row:
                    yield reader.line_num, row
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}). Check data-file.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error.reason}); save it as UTF-8.") from error
    except csv.Error as error:
        raise DataError(f"{path}: not a CSV file ({error}).") from error


def read_header(path: Path, keys: DataKeys, optional: tuple[str, ...]) -> Columns:
    """The first line's names, and which of them are label, user and cluster."""
    line, header = next(rows(path), (0, []))
    names = [name.strip() for name in header]
    if not names:
        raise DataError(f"{path}: empty; expected a header line and one line a sample.")
    if "" in names:
        raise DataError(
            f"{path}: line {line}: column {names.index('') + 1} has no name; name it, or drop it "
            "(pandas: index=False)."
        )
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise DataError(f"{path}: line {line}: the column {twice[0]!r} is there twice; rename one.")
    wanted = {"label": keys.label_column, "user": keys.user_column, "cluster": keys.cluster_column}
    at: dict[str, int] = {}
    for what, name in wanted.items():
        if name and name not in names and what not in optional:
            none = f", or {what}-column= if it has none" if what != "label" else ""
            raise DataError(
                f"{path}: no column {name!r} in the header (columns: {some(names)}); "
                f"set {what}-column=NAME{none}."
            )
        at[what] = names.index(name) if name in names else -1
    used = [i for i in at.values() if i >= 0]
    if at["label"] < 0:
        raise DataError(f"{path}: label-column is empty; set it to one of {some(names)}.")
    if len(set(used)) < len(used):
        raise DataError(f"{path}: label-column, user-column and cluster-column must differ.")
    columns = Columns(names, line, at["label"], at["user"], at["cluster"])
    if not columns.features:
        raise DataError(f"{path}: no feature columns beside {some(names)}.")
    return columns


def blame(path: Path, columns: Columns) -> None:
    """Raise the error that names the first cell that cannot be used; return if there is none."""
    text = (columns.user, columns.cluster)
    width = len(columns.names)
    for number, row in rows(path):
        if number <= columns.header_lines:
            continue
        if len(row) != width:
            raise DataError(f"{path}: line {number}: {len(row)} cells; the header has {width}.")
        for i, name in enumerate(columns.names):
            fault = None if i in text else unusable(row[i], label=i == columns.label)
            if fault:
                raise DataError(f"{path}: line {number}, column {name!r}: {row[i]!r} is {fault}.")


def unusable(word: str, *, label: bool) -> str | None:
    """What is wrong with a cell that has to be a number, or None."""
    if not word.strip():
        return "empty; a number belongs there: fill it in, or drop the row"
    try:
        value = float("x" if "_" in word else word)  # Python reads 1_000, numpy does not
    except ValueError:
        return "not a number; code it as one, or name it as user-column or cluster-column"
    if not math.isfinite(value) or (not label and abs(value) > FLOAT32_MAX):
        return "not a finite float32 number; fill it in, or drop the row"
    if label and (value < 0 or value != int(value)):
        return "not a class; number the classes 0, 1, 2, ..."
    return None
