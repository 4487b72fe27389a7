"""Questions about a table before it is fitted, and answers that are seen without asking."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from corsage.core.arrays import Floats
from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError, DataError
from corsage.core.registry import LIKELIHOODS
from corsage.core.tables.column_facts import MOST_LEVELS, NUMBER, NUMBERED_CLASSES, TableFacts
from corsage.datasets.columns.typed import FREE_TEXT, IDS, SOME_ROWS
from corsage.datasets.data_set import load_table
from corsage.datasets.sample_table import Table, some

if TYPE_CHECKING:
    from corsage.app.given import Data

OF_FILES = ("csv", "npz")
"""Data sets of one's own, of which nobody need say what their labels are."""
IN_TURN = 0.5
"""The share of the whole numbers between the ends that identifiers use, which are given in turn."""
UNIQUE = 0.9
"""The share of rows with a number of their own that tells identifiers from measurements; and of
numbers that have a row."""


def settled(values: Mapping[str, Any], progress: bool = True) -> dict[str, Any]:
    """Keys of a file, with what they leave open and the table says; or ConfigError that asks."""
    kind = Path(str(values.get("data-file", ""))).suffix.removeprefix(".").lower()
    dataset = str(values.get("dataset") or (kind if kind in OF_FILES else ""))
    if dataset not in OF_FILES:
        return dict(values)
    found = {**values, "dataset": dataset}
    own = {key: value for key, value in found.items() if key != "strategy"}
    labels, table = labelled(own)
    rows = left_out(table, own)
    ask(table, own)
    if progress:
        tell(rows, ())
    return {**found, "labels": labels, **without(rows, table, names(own, "drop-columns"))}


def labelled(keys: Mapping[str, Any]) -> tuple[str, Table]:
    """The kind of a file's labels, and its table: numbers, if some of them are no whole ones."""
    if "labels" not in keys:
        try:
            table = load_table(Config.parse({**keys, "labels": "numbers"}).data)
        except DataError:  # words; of another mistake the reader of classes says it
            pass
        else:
            if keys.get("loss") in LIKELIHOODS or (table.y % 1 != 0).any():
                return "numbers", table
    return str(keys.get("labels", "classes")), load_table(Config.parse(keys).data)


def settled_in_memory(
    read: Callable[[Mapping[str, Any]], Data], keys: Mapping[str, Any]
) -> tuple[Data, dict[str, Any]]:
    """Data in memory, read again without the columns that number the rows; and their keys."""
    given, own = read(keys), dict(keys)
    if given.held is None:
        return given, own
    table: Table = given.held.thing.table
    plain = {name.replace("_", "-"): value for name, value in keys.items()}
    if rows := left_out(table, plain):
        more = without(rows, table, names(plain, "drop-columns"))
        own |= {name.replace("-", "_"): value for name, value in more.items()}
        given = read(own)
    ask(table, plain)
    return given, own


def names(keys: Mapping[str, Any], what: str) -> list[str]:
    """The columns that a key names."""
    said = keys.get(what) or ()
    return str(said).split(",") if isinstance(said, str) else [str(one) for one in said]


def left_out(table: Table, keys: Mapping[str, Any]) -> list[str]:
    """The columns that number the rows, unless inputs were chosen."""
    return [] if names(keys, "feature-columns") else row_numbers(table)


def without(rows: Sequence[str], table: Table, dropped: Sequence[str]) -> dict[str, str]:
    """The keys that leave these columns out; where no other is left, inputs are none."""
    if rows and len(rows) == table.x.shape[1]:
        return {"drop-columns": "", "feature-columns": "none"}
    return {"drop-columns": ",".join([*dropped, *rows])} if rows else {}


def tell(dropped: Sequence[str], said: Sequence[str]) -> None:
    """Say which columns are left out though nobody asked for it."""
    if rows := [name for name in dropped if name not in said]:
        line = f"left out: {some(rows)}, which numbers the rows; feature-columns=... takes it in"
        print(line, file=sys.stderr)


def ask(table: Table, keys: Mapping[str, Any]) -> None:
    """Ask in a line what whole numbers are, where they may be something else."""
    if "labels" not in keys and (scores := like_scores(table)):
        raise ConfigError(
            f"label: {scores}: classes, or numbers to predict? Say labels=classes or "
            "labels=numbers."
        )
    facts = table.facts.columns if table.facts else ()
    dropped = {*names(keys, "drop-columns"), *left_out(table, keys)}
    inputs = [one.name for one in facts if one.name not in dropped]
    found = {} if names(keys, "feature-columns") else identifiers(table)
    for name in (name for name in found if name in inputs):
        words = f" category-columns={name}, they are words;" if found[name] <= MOST_LEVELS else ""
        raise ConfigError(
            f"column {name!r}: {found[name]:,} whole numbers that seem to name something. Say "
            f"which: drop-columns={name}, leave it out;{words} "
            f"feature-columns={','.join(inputs)}, it is a number."
        )


# Whole numbers that may be no numbers: those of a table's rows, identifiers, labels.


def row_numbers(table: Table) -> list[str]:
    """The columns that number the rows, and are called so.

    Up to half of the rows may have been left out since, such as those without a label.
    """
    return [
        name
        for name, column in of_numbers(table)
        if IDS.fullmatch(name) and counts_rows(column, IN_TURN)
    ]


def identifiers(table: Table) -> dict[str, int]:
    """The columns that seem to name something, by their names or shapes, and how many things."""
    return {
        name: len(np.unique(column))
        for name, column in of_numbers(table)
        if names_things(name, column)
    }


def of_numbers(table: Table) -> list[tuple[str, Floats]]:
    """The columns that were taken for numbers, if somebody named them, and enough rows to tell."""
    facts = table.facts
    if len(table.y) < SOME_ROWS or facts is None or not has_names(facts):
        return []
    return [(one.name, table.x[:, i]) for i, one in enumerate(facts.columns) if one.kind == NUMBER]


def counts_rows(column: Floats, share: float = UNIQUE) -> bool:
    """Tell whether numbers go up from row to row, few left out, as if rows were left out since.

    More than `share` of the numbers between the ends are there.
    """
    if not np.isfinite(column).all() or (column % 1 != 0).any():
        return False
    span = column[-1] - column[0] + 1
    return bool((np.diff(column) >= 1).all()) and len(column) > share * span


def names_things(name: str, column: Floats) -> bool:
    """Tell whether many whole numbers are called an identifier, or were given one after the other.

    Identifiers in turn leave few numbers out; and a table is sorted by them, or each is there once.
    Measurements that are all different leave most numbers out; years and ages come again, unsorted.
    """
    if not np.isfinite(column).all() or (column % 1 != 0).any():
        return False
    known = np.unique(column)
    if counts_rows(column):
        return True
    if len(known) <= FREE_TEXT:
        return False
    dense = len(known) > IN_TURN * (known[-1] - known[0] + 1)
    in_turn = bool((np.diff(column) >= 0).all()) or len(known) > UNIQUE * len(column)
    return bool(IDS.fullmatch(name)) or (dense and in_turn)


def like_scores(table: Table) -> str:
    """Whole numbers that were taken for classes and may be counts, or marks, in words; or nothing.

    Of two there is nothing to ask; nor of arrays, where their type says it, unless there are gaps.
    """
    last, facts = table.num_classes - 1, table.facts
    if table.x.ndim != 2 or last < 2:
        return ""
    if len(np.unique(table.y)) <= last:
        return f"whole numbers up to {last}, not all of them"
    numbered = facts is not None and has_names(facts) and facts.label.kind == NUMBERED_CLASSES
    return f"the whole numbers up to {last}" if numbered else ""


def has_names(facts: TableFacts) -> bool:
    """Tell whether somebody named the columns."""
    return any(name != f"x{i}" for i, name in enumerate(facts.names))
