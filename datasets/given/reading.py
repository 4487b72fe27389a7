"""From what a caller gives to a table; of a pandas frame whose each row is, what is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from corsage.core.arrays import Array, Floats
from corsage.core.errors import ConfigError, DataError
from corsage.core.tables.cells import empty
from corsage.core.tables.column_facts import NUMBER, NUMBERED_CLASSES, ColumnFacts
from corsage.datasets.columns.frame import label_column, typed_columns
from corsage.datasets.columns.typed import class_note, id_note
from corsage.datasets.given.given_samples import (
    LABEL_NAMES,
    Columns,
    Samples,
    is_hugging_face,
    samples_of,
)
from corsage.datasets.given.given_table import (
    WHERE,
    are_numbers,
    is_many,
    table,
    table_of,
    users_of,
)
from corsage.datasets.sample_table import Table, chosen_features, some


@dataclass(frozen=True)
class Given:
    """Data as a caller gives them.

    Parameters
    ----------
    data : users' samples, one pool of samples, or a frame.
    user, cluster : the column, or one id a sample; of users' samples `{user: cluster}`.
    label, features : columns of the label and of the input.
    labels : "classes" or "numbers", if it is said.
    drop, categories : of a frame, columns that are left out, and numbers that are words.
    missing : what is done about missing cells; rows without a label are left out, or refused.
    """

    data: Any
    user: Any = None
    cluster: Any = None
    label: str = ""
    features: tuple[str, ...] = ()
    labels: str = ""
    drop: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    missing: str = "refuse"

    @property
    def columns(self) -> Columns:
        """The columns that are meant."""
        return Columns(self.label, self.features)


def read(given: Given) -> Table:
    """The table of what was given."""
    if is_frame(given.data):
        return of_frame(given)
    if becomes_frame(given.data):
        return of_frame(replace(given, data=given.data.to_pandas()))
    if given.drop or given.categories:
        raise ConfigError("drop-columns, category-columns: these data are no frame, and have none.")
    if is_many(given.data):
        return of_users(given)
    if is_hugging_face(given.data):
        return of_hugging_face(given)
    return of_pool(given, samples_of(given.data, given.columns))


def becomes_frame(data: Any) -> bool:
    """Tell whether something is a frame of another package, such as polars or pyarrow."""
    return hasattr(data, "to_pandas") and not is_hugging_face(data)


def of_users(given: Given) -> Table:
    """Users, each with samples of its own."""
    if given.user is not None:
        raise ConfigError(
            "user: the data are given user by user, so their order, or their keys, name the users; "
            "leave it out."
        )
    if not isinstance(given.cluster, Mapping | None):
        raise ConfigError("cluster: of data that are given user by user it is {user: cluster}.")
    clusters = {str(user): str(name) for user, name in (given.cluster or {}).items()}
    found = users_of(given.data, given.columns)
    if strangers := [user for user in clusters if user not in found]:
        raise DataError(f"cluster: user {strangers[0]} has no samples.")
    return table_of(found, clusters, given.labels)


def of_pool(given: Given, own: Samples) -> Table:
    """One pool of samples, whose users are named sample by sample, or are dealt."""
    test = None
    if own.x_test is not None and own.y_test is not None:
        both = [(own.x, own.x_test), (own.y, own.y_test)]
        x, y = (np.concatenate(pair) for pair in both)
        test = np.arange(len(y)) >= len(own.y)
    else:
        x, y = own.x, own.y
    users, clusters = (ids(what, getattr(given, what)) for what in ("user", "cluster"))
    if test is not None and users is None:
        raise DataError("data: test samples need users: say whose each sample is (user=...).")
    return table(x, y, users, clusters, test, given.labels)


def ids(what: str, value: Any) -> Any:
    """Ids sample by sample; a name is no array."""
    if isinstance(value, str):
        raise ConfigError(f"{what}={value}: arrays have no columns; give an array of one id each.")
    return value


def of_hugging_face(given: Given) -> Table:
    """A Hugging Face Dataset, one of whose columns names users."""
    data, apart = given.data, {}
    for what in ("user", "cluster"):
        if (name := getattr(given, what)) is not None:
            if name not in data.column_names:
                raise DataError(
                    f"{what}={name}: no such column; there are {', '.join(data.column_names)}."
                )
            apart[what] = np.asarray(data.with_format(None)[name][:])
    rest = data.remove_columns([getattr(given, what) for what in apart])
    own = samples_of(rest, given.columns)
    return table(own.x, own.y, apart.get("user"), apart.get("cluster"), None, given.labels)


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
