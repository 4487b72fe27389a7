"""From what a caller gives to a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from corsage.core.arrays import Array
from corsage.core.columns import CLASSES, NUMBER, ColumnFacts
from corsage.core.errors import ConfigError, DataError
from corsage.datasets.columns.frame import label_column, typed_columns
from corsage.datasets.given.samples import (
    LABELS,
    Columns,
    Samples,
    array_of,
    is_hugging_face,
    samples_of,
)
from corsage.datasets.given.table import are_numbers, is_many, table, table_of, users_of
from corsage.datasets.table import Table


@dataclass(frozen=True)
class Given:
    """Data as a caller gives them.

    Parameters
    ----------
    data : users' samples, one pool of samples, or a frame.
    user, cluster : the column, or one id a sample; of users' samples `{user: cluster}`.
    label, features : columns of the label and of the input.
    labels : "classes" or "numbers", if it is said.
    """

    data: Any
    user: Any = None
    cluster: Any = None
    label: str = ""
    features: tuple[str, ...] = ()
    labels: str = ""

    @property
    def columns(self) -> Columns:
        """Which columns are meant."""
        return Columns(self.label, self.features)


def read(given: Given) -> Table:
    """The table of what was given."""
    if is_frame(given.data):
        return of_frame(given)
    if is_many(given.data):
        return of_users(given)
    if is_hugging_face(given.data):
        return of_hugging_face(given)
    return of_pool(given, samples_of(given.data, given.columns))


def is_frame(data: Any) -> bool:
    """Whether something is a pandas frame."""
    return hasattr(data, "columns") and hasattr(data, "iloc")


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


def ids(what: str, value: Any) -> Array | None:
    """Ids sample by sample; a name is no array."""
    if isinstance(value, str):
        raise ConfigError(f"{what}={value}: arrays have no columns; give an array of one id each.")
    return None if value is None else array_of(value, what)


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


def of_frame(given: Given) -> Table:
    """A pandas frame: numbers, and words as categories."""
    frame = given.data
    named = [name for name in (given.user, given.cluster) if isinstance(name, str)]
    label = given.label or next((name for name in LABELS if name in frame.columns), "")
    for name in (*named, label):
        if name not in frame.columns:
            raise DataError(f"no column {name!r}; there are {', '.join(map(str, frame.columns))}.")
    features = given.features or tuple(
        name for name in frame.columns if name not in (*named, label)
    )
    users, clusters = (
        frame[name].to_numpy(str) if isinstance(name, str) else name
        for name in (given.user, given.cluster)
    )
    x, facts = typed_columns(frame, features, "data")
    y, words = label_column(frame[label], str(label), "data")
    named_label = words or ColumnFacts(
        str(label), NUMBER if are_numbers(y, given.labels) else CLASSES
    )
    return table(x, y, users, clusters, None, given.labels, tuple(facts), named_label)
