"""`corsage predict`: what a user's model says of the rows of a file."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from logging import LogRecord, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from corsage.app.inference.source import Models, Words, models_in, only, read
from corsage.app.output.usage import command
from corsage.app.results.csv_files import plain
from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError, CorsageError, DataError
from corsage.core.files import guarded, write_atomically
from corsage.core.tables.cells import BadCell
from corsage.datasets.columns.csv_cells import COMMA, Dialect, dialect_of, every_row, is_blank
from corsage.datasets.npzfile import NO_ARRAYS, unread

if TYPE_CHECKING:
    from corsage.app.results.user_model import UserModel

USAGE = """\
usage: corsage predict PLACE [strategy=ROW] [user=NAME] FILE
                       [--out FILE] [--proba] [--interval] [--new-users] [models=NAME]

  PLACE         a run folder, or a device's state-dir: no server is needed
  strategy=ROW  a row of the run's table, such as fedrep or fedavg+ft, if there are several
  user=NAME     whose model; without it each row has the model of the user in its user column
  FILE          a CSV file with a header, in which columns may have any order, or an NPY or NPZ
                file with samples
  --out FILE    write there; else to the terminal. The rows as they came, and a column `prediction`
  --proba       how likely each class is, too
  --interval    columns `low` and `high`, between which 95% of new labels lie: of a linear model
                whose labels are numbers
  --new-users   rows of unknown users get the model that a new user begins with
  models=NAME   code of a model's own, package.module:factory, that may be run though it was not
                trained here before; several with commas
"""

FLAGS = ("--proba", "--interval", "--new-users")
SHARE_WITHIN = 0.95
"""The share of new labels that an interval has in it."""


@command(USAGE, CorsageError, needs_words=True)
def run(words: list[str]) -> None:
    """Do what the words say; 0, or 2 with one line on what is wrong."""
    predict(read(words, ("strategy", "user", "models"), ("--out",), FLAGS))


def predict(words: Words) -> None:
    """Predict the rows of a file, and write them down."""
    if len(words.files) != 2:
        raise ConfigError("predict: name a run folder or state-dir, and a file of rows.")
    place, file = words.files
    models, rows = models_in(place, words.keys.get("strategy", "")), read_rows(Path(file))
    owners = owners_of(rows, models, words)
    with once():
        found = predicted(rows, owners, models, words)
    text = written(rows, found)
    if out := words.options.get("--out"):
        guarded(write_atomically, Path(out).expanduser(), text)
        print(f"{out}: {len(rows):,} rows, {models.row}", file=sys.stderr)
    else:
        sys.stdout.write(text)


@contextmanager
def once() -> Iterator[None]:
    """Log once what the models of several users say of a column alike."""
    log, told = getLogger("corsage"), set[str]()

    def is_new(record: LogRecord) -> bool:
        known, line = len(told), record.getMessage()
        told.add(line)
        return len(told) > known

    log.addFilter(is_new)
    try:
        yield
    finally:
        log.removeFilter(is_new)


def owners_of(rows: Rows, models: Models, words: Words) -> NDArray[Any]:
    """The user whose model each row is to have."""
    if "user" in words.keys:
        return np.full(len(rows), words.keys["user"], object)
    column = str(models.config.flat().get("user-column") or "user") if models.config else "user"
    named = rows.column(column)
    if named is None:
        return np.full(len(rows), only(dict.fromkeys(models.users), "user"), object)
    return np.array([str(name) for name in named], object)


def predicted(
    rows: Rows, owners: NDArray[Any], models: Models, words: Words
) -> dict[str, NDArray[Any]]:
    """The new columns."""
    known, columns = set(models.users), dict[str, NDArray[Any]]()
    for name in dict.fromkeys(owners.tolist()):
        new = name not in known and "--new-users" in words.flags
        model = models.new_user() if new else models.user(name)
        if new:
            print(f"user {name}: is new: {model.start}", file=sys.stderr)
        places = np.flatnonzero(owners == name)
        for column, values in answers(model, rows.pick(places.tolist()), models, words).items():
            target = columns.setdefault(column, np.empty(len(rows), object))
            target[places] = values
    return columns


def answers(model: UserModel, rows: Rows, models: Models, words: Words) -> dict[str, Any]:
    """One model's columns for its rows."""
    x: Any = features(rows, models.config) if model.preparation is None else by_name(rows)
    try:
        found: dict[str, Any] = {"prediction": model.predict(x)}
    except BadCell as bad:
        if not rows.lines:
            raise
        raise DataError(f"line {rows.lines[bad.row]}, column {bad.column!r}{bad.what}") from None
    if "--interval" in words.flags:
        ends = model.predict(x, interval=SHARE_WITHIN)
        found |= {"low": ends[:, 1], "high": ends[:, 2]}
    if "--proba" in words.flags:
        likely = model.predict_proba(x)
        names = (f"probability of {name}" for name in model.classes)
        found |= dict(zip(names, likely.T, strict=True))
    return found


def by_name(rows: Rows) -> Any:
    """The columns of a table by their names; of an array the rows."""
    if not rows.names:
        return rows.cells
    cells = rows.words()
    return {name: cells[:, i] for i, name in enumerate(rows.names)}


def written(rows: Rows, found: dict[str, NDArray[Any]]) -> str:
    """The rows as they came, and the new columns, in the way that the file is written."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter=rows.dialect.delimiter, lineterminator="\n")
    taken = [f"{name}_" if name in rows.names else name for name in found]
    writer.writerow(map(plain, [*rows.names, *taken]))
    for i, cells in enumerate(rows.cells if rows.names else [[]] * len(rows)):
        new = [rows.dialect.written(values[i]) for values in found.values()]
        writer.writerow([plain(cell) for cell in (*cells, *new)])
    return text.getvalue()


@dataclass(frozen=True)
class Rows:
    """The rows of a file.

    Parameters
    ----------
    names : the columns; none of an array.
    cells : the words of each row, or an array of samples.
    dialect : how the file is written.
    lines : the file's line of each row; none of an array.
    """

    names: list[str]
    cells: NDArray[Any]
    dialect: Dialect = Dialect()
    lines: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.cells)

    def column(self, name: str) -> NDArray[Any] | None:
        """A column by its name, if it is there."""
        return self.cells[:, self.names.index(name)] if name in self.names else None

    def pick(self, places: Sequence[int]) -> Rows:
        """Some of the rows."""
        lines = [self.lines[place] for place in places] if self.lines else ()
        return Rows(self.names, self.cells[list(places)], self.dialect, lines)

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
    every = [*every_row(path, dialect.delimiter)]
    (_, head), *lines = [(n, row) for n, row in every if not is_blank(row)] or [(0, [])]
    if blank := len(every) - len(lines) - 1:
        print(f"{path}: {blank} blank row{'s' * (blank > 1)} left out", file=sys.stderr)
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
    return Rows(names, cells, dialect, [number for number, _ in lines])


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
    """Inputs of a model that knows no columns: the numbers of all but those of other uses."""
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
            f"line {rows.lines[at[0]]}, column {names[at[1]]!r}: {cells[at]!r:.40} is not a number."
        ) from None


def is_number(cell: str) -> bool:
    """True if a cell is a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True
