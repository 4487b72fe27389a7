"""Questions about a table before it is fitted, and answers that are seen without asking."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError, DataError
from corsage.core.tables.column_facts import MOST_LEVELS
from corsage.datasets.data_set import load_table
from corsage.datasets.given.doubts import are_scores, identifiers, row_numbers
from corsage.datasets.sample_table import Table, some

if TYPE_CHECKING:
    from corsage.app.given import Data

OF_FILES = ("csv", "npz")
"""Data sets of one's own, of which nobody need say what their labels are."""


def settled(values: Mapping[str, Any]) -> dict[str, Any]:
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
            if (table.y % 1 != 0).any():
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
    if "labels" not in keys and table.x.ndim == 2 and are_scores(table.y, table.num_classes):
        raise ConfigError(
            f"label: whole numbers up to {table.num_classes - 1}, not all of them: classes, or "
            "numbers to predict? Say labels=classes or labels=numbers."
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
            f"feature-columns={some(inputs).replace(', ', ',')}, it is a number."
        )
