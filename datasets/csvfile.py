"""A CSV file of one's own: a header, a label column, perhaps user and cluster; the rest are inputs,
or those of the others that `feature-columns` names.

What is between the cells, and whether decimals have a comma, is seen from the file. A column is
numbers or the words of a category; its levels, and its mean and spread, are agreed on by the whole
federation (`core.preparation`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from corsage.core.arrays import Array, Floats
from corsage.core.errors import DataError
from corsage.core.tables.column_facts import (
    CATEGORY,
    LARGEST_CELL,
    ColumnFacts,
    TableFacts,
    is_missing,
)
from corsage.datasets.columns.csv_cells import (
    Cells,
    Dialect,
    Place,
    dialect_of,
    locate,
    numeric,
    read_cells,
    rows,
    text_of,
)
from corsage.datasets.columns.typed import (
    NO_CLASS,
    Source,
    categories,
    class_names,
    class_note,
    id_note,
    numbered,
    numbers,
)
from corsage.datasets.data_set import DataSet
from corsage.datasets.sample_table import (
    INVISIBLE,
    Table,
    check_seen,
    check_users,
    chosen_features,
    input_numbers,
    read_labels,
    some,
)
from corsage.datasets.shared_keys import CsvKeys, check_columns, own_file

FLOAT32_MAX = float(np.finfo(np.float32).max)


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
        """The places of the columns that are words for certain."""
        return [i for i in (self.user, self.cluster) if i >= 0]

    @property
    def nameless(self) -> list[int]:
        """The places of the columns without a name, such as row numbers, or blanks at the end."""
        return [i for i, name in enumerate(self.names) if not name]

    @property
    def idle(self) -> list[int]:
        """The places of the columns that nobody wants."""
        used = {self.label, self.user, self.cluster, *self.features}
        return [i for i in range(len(self.names)) if i not in used]


def load(keys: CsvKeys) -> Table:
    """The samples of `data-file`; its user column must be there unless `user-column` is empty."""
    return read(keys.path, keys)


def read(path: Path, keys: CsvKeys, *, optional: tuple[str, ...] = ()) -> Table:
    """One CSV file; of the columns "user" and "cluster", those in `optional` may be absent."""
    dialect = dialect_of(path)
    columns = find_columns(path, keys, optional, dialect.delimiter)
    return CsvFile(path, keys, columns, dialect).table()


def read_numbers(path: Path, columns: Columns) -> Table:
    """A file of known columns, all of numbers, which a model takes as they are."""
    file = CsvFile(path, CsvKeys(scale="none"), columns, Dialect())
    table = file.table()
    assert table.facts is not None
    for column in table.facts.columns:
        if column.kind == CATEGORY:
            word = next(word for word in column.levels if not numeric(word, Dialect()))
            why = "not a number; write it with a decimal point and no comma"
            raise file.source.error(column.name, lambda w, word=word: w.strip() == word, why)  # type: ignore[misc]
    return replace(table, x=input_numbers(table.x, exact=columns.numbers), facts=None)


class CsvFile:
    """A file, and how it is to be read."""

    def __init__(self, path: Path, keys: CsvKeys, columns: Columns, dialect: Dialect) -> None:
        self.path, self.keys, self.columns, self.dialect = path, keys, columns, dialect
        self.place = Place(path, dialect, columns.names, columns.header_lines)
        self.forced = [i for i, n in enumerate(columns.names) if n in keys.category_columns]
        self.source = Source(
            str(path), self.located, keys.missing != "refuse",
            FLOAT32_MAX if keys.scaling == "none" else LARGEST_CELL,
        )  # fmt: skip

    def table(self) -> Table:
        """The rows below the header; those without a label are left out, if gaps are taken."""
        columns = self.columns
        cells = read_cells(self.place, {*columns.text, *self.forced}, columns.idle)
        users = self.ids(cells, columns.user)
        clusters = self.ids(cells, columns.cluster)
        if users is not None and (users == "").any():
            why = "empty; a user's id belongs there: fill it in, or drop the row"
            raise self.source.error(columns.names[columns.user], lambda w: not w.strip(), why)
        for at in columns.text:
            if not "".join(cells.words[at].words).isprintable():
                why = f"no id of a {'user' if at == columns.user else 'cluster'}: {INVISIBLE}"
                raise self.source.error(
                    columns.names[at], lambda w: not w.strip().isprintable(), why
                )
        x, inputs = self.inputs(cells)
        y, label = self.labels(cells)
        known = ~np.isnan(y) if y.dtype.kind == "f" else np.ones(len(y), bool)
        notes = [self.dialect.note] * bool(self.dialect.note)
        notes += [f"column {i + 1} has no name and is left out" for i in columns.nameless]
        notes += [note for i, one in enumerate(inputs) if (note := id_note(one.name, x[:, i]))]
        if not known.all():
            left = len(known) - int(known.sum())
            notes.append(f"{left} rows without a label are left out")
            x, y = x[known], y[known]
            users = None if users is None else users[known]
            clusters = None if clusters is None else clusters[known]
        if users is not None:
            check_users(users, str(self.path))
        y, classes = self.as_labels(y, label)
        notes += class_note(label, y)
        return Table(
            x, y, users, clusters, classes, 0.0, 1.0, facts=TableFacts(tuple(inputs), label),
            notes=tuple(f"{self.path.name}: {note}" for note in notes),
        )  # fmt: skip

    def ids(self, cells: Cells, column: int) -> Array | None:
        """A column of users or clusters."""
        return text_of(cells, column) if column >= 0 else None

    def inputs(self, cells: Cells) -> tuple[Floats, list[ColumnFacts]]:
        """The columns that are inputs, each as what it is."""
        columns = self.columns
        x, facts = np.empty((len(cells.numbers), len(columns.features))), []
        for at, i in enumerate(columns.features):
            name, column = columns.names[i], cells.numbers[:, i]
            if i in cells.words:
                words = cells.words[i].words
                found = categories(name, column, words, self.source, i in self.forced)
            else:
                found = numbers(name, column, self.source)
            x[:, at] = found[0]
            facts.append(found[1])
        return x, facts

    def labels(self, cells: Cells) -> tuple[Array, ColumnFacts]:
        """The labels, NaN where one is missing."""
        i = self.columns.label
        name, column = self.columns.names[i], cells.numbers[:, i]
        if i not in cells.words:
            found, _ = numbers(name, column, replace(self.source, largest=FLOAT32_MAX))
            return found, ColumnFacts(name) if self.columns.numbers else numbered(name)
        if self.columns.numbers:
            raise self.source.error(
                name, lambda word: not numeric(word, self.dialect),
                "not a number, and labels=numbers: write it with a decimal point and no comma, or "
                "leave labels=numbers out if its words are classes",
            )  # fmt: skip
        return class_names(name, column, cells.words[i].words, self.source)

    def as_labels(self, y: Array, label: ColumnFacts) -> tuple[Array, int]:
        """Labels as numbers of classes, with how many there are; or as they are."""
        if label.levels:
            return y.astype(np.int64), len(label.levels)
        if not self.columns.numbers and (bad := (y < 0) | (y % 1 != 0)).any():
            worst = float(y[int(bad.argmax())])
            raise self.source.error(label.name, lambda word: same(word, worst), NO_CLASS)
        return read_labels(y, str(self.path), numbers=self.columns.numbers)

    def located(self, name: str, is_it: Callable[[str], bool]) -> str:
        """In words, where the first such cell of a column is."""
        line, word = locate(self.place, self.columns.names.index(name), is_it)
        return f"line {line}, column {name!r}: {word!r}"


def line_of(keys: CsvKeys, user: str, name: str, value: float) -> int:
    """The first line of a user's, in a file that was read, with a value in a column; 0: none."""
    dialect = dialect_of(keys.path)
    line, names = read_header(keys.path, dialect.delimiter)
    if name not in names:
        return 0
    column = names.index(name)
    whose = names.index(keys.user_column) if keys.user_column in names else -1
    for number, row in rows(keys.path, dialect.delimiter):
        mine = whose < 0 or row[whose].strip() == user
        if number > line and mine and same(row[column], value):
            return number
    return 0


def same(word: str, value: float) -> bool:
    """Tell whether a word is this number."""
    try:
        return not is_missing(word) and math.isclose(
            float(word.replace(",", ".")), value, rel_tol=1e-9
        )
    except ValueError:
        return False


def read_header(path: Path, delimiter: str = ",") -> tuple[int, list[str]]:
    """The number of the header's last line, and the names of the columns; some may have none."""
    line, header = next(rows(path, delimiter), (0, []))
    names = [name.strip() for name in header]
    if not names:
        raise DataError(f"{path}: empty; expected a header line and one line a sample.")
    twice = [name for i, name in enumerate(names) if name and name in names[:i]]
    if twice:
        raise DataError(f"{path}: line {line}: the column {twice[0]!r} is there twice; rename one.")
    return line, names


def find_columns(
    path: Path, keys: CsvKeys, optional: tuple[str, ...], delimiter: str = ","
) -> Columns:
    """Find label, user, cluster and features among the header's names."""
    line, names = read_header(path, delimiter)
    wanted = {"label": keys.label_column, "user": keys.user_column, "cluster": keys.cluster_column}
    at: dict[str, int] = {}
    for what, name in wanted.items():
        if name and name not in names and what not in optional:
            none = f", or {what}-column= if it has none" if what != "label" else ""
            raise DataError(
                f"{path}: no column {name!r} in the header (columns: {some(names)}); "
                f"set {what}-column=NAME{none}."
            )
        at[what] = names.index(name) if name and name in names else -1
    used = [i for i in at.values() if i >= 0]
    if at["label"] < 0:
        raise DataError(f"{path}: label-column is empty; set it to one of {some(names)}.")
    if len(set(used)) < len(used):
        raise DataError(f"{path}: label-column, user-column and cluster-column must differ.")
    free = [name for i, name in enumerate(names) if name and i not in used]
    check_named(path, keys, names)
    usual = [name for name in free if name not in keys.drop_columns]
    chosen = chosen_features(keys.feature_columns, free, usual, str(path))
    check_seen([names[at["label"]]], f"{path}: the header")
    features = [names.index(name) for name in chosen]
    if not features and not keys.feature_columns:
        raise DataError(
            f"{path}: no feature columns beside {some(names)}; feature-columns=none if that is "
            "meant."
        )
    return Columns(names, line, at["label"], at["user"], at["cluster"], features, keys.numbers)


def check_named(path: Path, keys: CsvKeys, names: list[str]) -> None:
    """Refuse keys that name columns which are not there, or that contradict each other."""
    for what, named in (("drop", keys.drop_columns), ("category", keys.category_columns)):
        if unknown := [name for name in named if name not in names]:
            raise DataError(
                f"{path}: {what}-columns: no column {some(unknown)} in the header "
                f"(columns: {some(names)})."
            )
    if keys.drop_columns and keys.feature_columns:
        raise DataError("feature-columns and drop-columns: set one of them; the other follows.")


DATASET = DataSet(load, CsvKeys, own_file, check_columns, users="either", read=read)
