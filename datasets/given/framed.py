"""A pandas frame becomes a table: whose each row is, what its columns are, what is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from corsage.core.arrays import Array, Floats
from corsage.core.errors import DataError
from corsage.core.tables.cells import empty
from corsage.core.tables.column_facts import NUMBER, NUMBERED_CLASSES, ColumnFacts
from corsage.datasets.columns.frame import label_column, typed_columns
from corsage.datasets.columns.typed import class_note, id_note
from corsage.datasets.given.given_samples import LABEL_NAMES
from corsage.datasets.given.given_table import WHERE, are_numbers, table
from corsage.datasets.given.wanted import Given
from corsage.datasets.sample_table import Table, chosen_features, some


def is_frame(data: Any) -> bool:
    """Tell whether something is a pandas frame."""
    return hasattr(data, "columns") and hasattr(data, "iloc")


def of_frame(given: Given) -> Table:
    """A pandas frame: numbers, and words as categories."""
    named = [name for name in (given.user, given.cluster) if isinstance(name, str)]
    label = given.label or next((name for name in LABEL_NAMES if name in given.data.columns), "")
    if not label:
        raise DataError(
            f"{WHERE}: label: say which column it is, of {some(all_names(given.data))}."
        )
    frame = with_columns(given.data, [*named, label])
    if len({*named, label}) <= len(named):
        raise DataError(f"{WHERE}: label, user and cluster must be different columns.")
    known, note = labelled(frame[label], label, given.missing != "refuse")
    frame = frame[known]
    users, clusters = (
        None if own is None else frame[own] if isinstance(own, str) else np.asarray(own)[known]
        for own in (given.user, given.cluster)
    )
    features = inputs(frame, given, (*named, label))
    x, facts = typed_columns(frame, features, WHERE, given.categories)
    forced, numbers = label in given.categories, given.labels == "numbers"
    y, words = label_column(frame[label], label, WHERE, forced, numbers)
    said = words or ColumnFacts(label, NUMBER if are_numbers(y, given.labels) else NUMBERED_CLASSES)
    found = table(x, y, users, clusters, None, given.labels, tuple(facts), said)
    notes = (*note, *ids_among(facts, x), *class_note(said, found.y))
    return replace(found, notes=tuple(f"{WHERE}: {one}" for one in notes))


def with_columns(frame: Any, names: Sequence[str]) -> Any:
    """The frame with these columns, of which some may be levels of its index; each name is there
    once."""
    levels = [name for name in names if name not in frame.columns and name in frame.index.names]
    frame = frame.reset_index(level=levels) if levels else frame
    for name in names:
        if name not in frame.columns:
            raise DataError(f"no column {name!r}; there are {some(all_names(frame))}.")
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise DataError(f"{WHERE}: the column {str(twice)!r} is there twice; rename one.")
    return frame


def all_names(frame: Any) -> list[str]:
    """The columns' names, as texts."""
    return [str(name) for name in frame.columns]


def labelled(column: Any, name: str, gaps: bool) -> tuple[Array, tuple[str, ...]]:
    """Mark the rows with a label, with notes on the others; without `gaps` they are refused."""
    known = np.array([not empty(cell) for cell in column], dtype=bool)
    if known.all():
        return known, ()
    if not gaps:
        raise DataError(
            f"{WHERE}: row {int(np.argmin(known))}, column {name!r}: its label is missing; leave "
            "the row out, or set missing=mean or flag to have such rows left out."
        )
    return known, (f"{int((~known).sum())} rows without a label are left out",)


def inputs(frame: Any, given: Given, used: Sequence[str]) -> list[Any]:
    """The columns that are inputs, by the names that the frame has for them."""
    by_name = {str(name): name for name in frame.columns}
    for what, named in (("drop", given.drop), ("category", given.categories)):
        if unknown := [name for name in named if name not in by_name]:
            raise DataError(
                f"{what}-columns: no column {some(unknown)}; there are {some([*by_name])}."
            )
    if given.drop and given.features:
        raise DataError("feature-columns and drop-columns: set one of them; the other follows.")
    free = [name for name in by_name if name not in used]
    usual = [name for name in free if name not in given.drop]
    chosen = chosen_features(given.features, free, usual, WHERE)
    if not chosen and not given.features:
        raise DataError(
            f"{WHERE}: no feature columns beside {some([*used])}; feature-columns=none if that is "
            "meant."
        )
    return [by_name[name] for name in chosen]


def ids_among(facts: Sequence[ColumnFacts], x: Floats) -> list[str]:
    """Notes on columns that seem to number the rows."""
    notes = [id_note(one.name, x[:, i]) for i, one in enumerate(facts) if one.kind == NUMBER]
    return [note for note in notes if note]
