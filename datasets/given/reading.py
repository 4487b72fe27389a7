"""From what a caller gives to a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from corsage.core.errors import ConfigError, DataError
from corsage.datasets.given.framed import is_frame, of_frame
from corsage.datasets.given.given_samples import (
    Samples,
    is_hugging_face,
    samples_of,
)
from corsage.datasets.given.given_table import is_many, table, table_of, users_of
from corsage.datasets.given.wanted import Given
from corsage.datasets.sample_table import Table


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
