"""A CSV file of one's own: a header, a label column, perhaps user and cluster; the rest features,
or those of the others that `feature-columns` names.

numpy's C reader takes the whole file in one pass, the text columns coded as numbers on the way.
Only if that fails is the file read again row by row, to name the line, the column and the word.
"""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from corsage.core.errors import DataError
from corsage.datasets.data_set import DataSet
from corsage.datasets.shared_keys import ColumnKeys, FeatureKeys, check_columns, own_file
from corsage.datasets.table import (
    OR_NUMBERS,
    Table,
    check_users,
    chosen_features,
    held,
    input_numbers,
    read_labels,
    some,
)

FLOAT32_MAX = float(np.finfo(np.float32).max)
ENCODING = "utf-8-sig"  # UTF-8, with or without the mark that spreadsheets put first

# What is wrong with a cell, and what to do.
NO_CLASS = f"not a class; number the classes 0, 1, 2, ...{OR_NUMBERS}"
NO_POINT = "not a number; write it with a decimal point and no comma"
NO_NUMBER = (
    "not a number; code it as one, name it as user-column or cluster-column, or leave it out by "
    "feature-columns"
)


@dataclass(frozen=True)
class CsvKeys(FeatureKeys, ColumnKeys):
    """Keys of a CSV file."""


@dataclass(frozen=True)
class Columns:
    """The header, and where in it what is found; -1: the file has no such column."""

    names: list[str]
    header_lines: int
    label: int
    user: int
    cluster: int
    features: list[int]
    numbers: bool = False

    @property
    def text(self) -> list[int]:
        """The places of the columns of words."""
        return [i for i in (self.user, self.cluster) if i >= 0]

    @property
    def idle(self) -> list[int]:
        """The places of the columns that nobody wants."""
        used = {self.label, self.user, self.cluster, *self.features}
        return [i for i in range(len(self.names)) if i not in used]


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


def load(keys: CsvKeys) -> Table:
    """The samples of `data-file`; its user column must be there unless `user-column` is empty."""
    return read(keys.path, keys)


def read(path: Path, keys: CsvKeys, *, optional: tuple[str, ...] = ()) -> Table:
    """One CSV file; of the columns "user" and "cluster", those in `optional` may be absent."""
    return read_table(path, find_columns(path, keys, optional))


def read_table(path: Path, columns: Columns) -> Table:
    """The rows below the header."""
    coded = {i: Codes() for i in columns.text}
    cells = read_cells(path, columns, coded)
    x = cells[:, columns.features]
    if not held(x).all():
        blame(path, columns)
    x = input_numbers(x, exact=columns.numbers)
    try:
        y, classes = read_labels(cells[:, columns.label], str(path), numbers=columns.numbers)
    except DataError:
        blame(path, columns)
        raise
    users = coded[columns.user].words(cells[:, columns.user]) if columns.user >= 0 else None
    if users is not None:
        if (users == "").any():
            blame(path, columns)
        check_users(users, str(path))
    where = columns.cluster
    clusters = coded[where].words(cells[:, where]) if where >= 0 else None
    return Table(x, y, users, clusters, classes, 0.0, 1.0)


def read_cells(path: Path, columns: Columns, coded: Mapping[int, Codes]) -> NDArray[np.float64]:
    """All cells as numbers, words by their codes, 0 in columns that nobody wants."""
    converters: dict[int | str, Callable[[str], float]] = dict.fromkeys(columns.idle, nothing)
    converters.update((place, codes) for place, codes in coded.items())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # "input contained no data": said below
            cells = np.loadtxt(
                path, np.float64, comments=None, delimiter=",", skiprows=columns.header_lines,
                ndmin=2, encoding=ENCODING, quotechar='"',
                converters=converters or None,
            )  # fmt: skip
    except ValueError as error:  # UnicodeDecodeError is one too
        blame(path, columns)
        raise DataError(f"{path}: not a CSV file of numbers ({error}).") from error
    if not len(cells):
        raise DataError(f"{path}: no rows below the header.")
    if cells.shape[1] != len(columns.names):
        blame(path, columns)
    return cells


def nothing(_: str) -> float:
    """Any word, as a number."""
    return 0.0


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


def read_header(path: Path) -> tuple[int, list[str]]:
    """The number of the header's last line, and the names of the columns."""
    line, header = next(rows(path), (0, []))
    names = [name.strip() for name in header]
    if not names:
        raise DataError(f"{path}: empty; expected a header line and one line a sample.")
    if "" in names:
        raise DataError(
            f"{path}: line {line}: column {names.index('') + 1} has no name; name it, or drop it "
            "(pandas: index=False)."
        )
    if len(names) == 1 and {";", "\t"} & set(names[0]):
        raise DataError(
            f"{path}: line {line}: its cells are not separated by commas; save it with commas, and "
            "with decimal points."
        )
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise DataError(f"{path}: line {line}: the column {twice[0]!r} is there twice; rename one.")
    return line, names


def find_columns(path: Path, keys: CsvKeys, optional: tuple[str, ...]) -> Columns:
    """Which of the header's names are label, user, cluster and features."""
    line, names = read_header(path)
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
    free = [name for i, name in enumerate(names) if i not in used]
    chosen = chosen_features(keys.feature_columns, free, free, str(path))
    features = [names.index(name) for name in chosen]
    if not features and not keys.feature_columns:
        raise DataError(
            f"{path}: no feature columns beside {some(names)}; feature-columns=none if that is "
            "meant."
        )
    return Columns(names, line, at["label"], at["user"], at["cluster"], features, keys.numbers)


def blame(path: Path, columns: Columns) -> None:
    """Raise the error that names the first cell that cannot be used; return if there is none."""
    unread = (*columns.text, *columns.idle)
    width = len(columns.names)
    for number, row in rows(path):
        if number <= columns.header_lines:
            continue
        if len(row) != width:
            raise DataError(f"{path}: line {number}: {len(row)} cells; the header has {width}.")
        for i, name in enumerate(columns.names):
            classes = i == columns.label and not columns.numbers
            fault = None if i in unread else unusable(row[i], classes=classes)
            if i == columns.user and not row[i].strip():
                fault = "empty; a user's id belongs there: fill it in, or drop the row"
            if fault:
                raise DataError(f"{path}: line {number}, column {name!r}: {row[i]!r} is {fault}.")


def unusable(word: str, *, classes: bool) -> str | None:
    """What is wrong with a cell that has to be a number, or a class's number; or None."""
    if not word.strip():
        return "empty; a number belongs there: fill it in, or drop the row"
    try:
        value = float("x" if "_" in word else word)  # Python reads 1_000, numpy does not
    except ValueError:
        return NO_CLASS if classes else NO_POINT if word.count(",") == 1 else NO_NUMBER
    if not math.isfinite(value) or (not classes and abs(value) > FLOAT32_MAX):
        return "not a finite float32 number; fill it in, or drop the row"
    if classes and (value < 0 or value != int(value)):
        return NO_CLASS
    return None


DATASET = DataSet(load, CsvKeys, own_file, check_columns, users="either")
