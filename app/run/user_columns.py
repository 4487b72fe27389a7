"""Results of very many users: their numbers are columns in a file of their own, not lines of JSON.

Whatever a result says user by user is taken out of it, and put back when it is read. `summary.json`
has quantiles instead, and by name the users who are worst and best off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from corsage.core.arrays import Array, Arrays
from corsage.core.measures import measure_of
from corsage.strategies.rounds.ledger import packed, unpacked

COLUMN_FROM = 20_000
"""Entries from which on a table of users is a column."""
SUMMARY_USERS = 10
"""Users at each end whom the summary names."""
OF_ALL = ("outcomes", "untrained")
"""Entries that mean nothing of some users."""
QUANTILES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
COLUMN = "column"
"""The key of what stands in the place of a column: its number."""
Json = dict[str, Any]


class Columns:
    """Columns of a file; those with the same users share the users' ids."""

    def __init__(self) -> None:
        self.arrays: Arrays = {}
        self._count = 0
        self._known: list[tuple[list[str], str]] = []

    def put(self, value: Mapping[str, Any] | Sequence[str]) -> Any:
        """A reference in the place of a table or list of users; itself if it is neither."""
        if not isinstance(value, Mapping):
            return {COLUMN: self._users(list(value))} if texts(value) else value
        array = as_array(list(value.values()))
        if array is None or not texts(list(value)):
            return value
        name = self._new()
        self.arrays[f"{name}.{'texts' if array.dtype == np.uint8 else 'numbers'}"] = array
        return {COLUMN: f"{name} {self._users(list(value))}"}

    def _users(self, users: list[str]) -> str:
        """The name of a list of ids."""
        for known, name in self._known:
            if known == users:
                return name
        name = self._new()
        self._known.append((users, name))
        self.arrays[f"{name}.users"] = packed(users)
        return name

    def _new(self) -> str:
        self._count += 1
        return str(self._count)


def texts(values: Sequence[Any]) -> bool:
    """True if values are texts."""
    return set(map(type, values)) == {str}


def as_array(values: list[Any]) -> Array | None:
    """Values of one kind as an array, texts as its bytes; None if they are not of one kind."""
    kinds = set(map(type, values))
    if kinds == {int}:
        return np.array(values, np.int64)
    if kinds == {float}:
        return np.array(values, np.float64)
    return packed(values) if texts(values) else None


def taken_apart(results: Sequence[Mapping[str, Any]]) -> tuple[list[Json], bytes]:
    """Results without their long tables of users, and these as a file; none: there are none."""
    columns = Columns()
    plain = [_without(result, columns) for result in results]
    return plain, save(columns.arrays) if columns.arrays else b""


def _without(value: Any, columns: Columns) -> Any:
    if isinstance(value, Mapping):
        if len(value) > COLUMN_FROM and (found := columns.put(value)) is not value:
            return found
        return {key: _without(one, columns) for key, one in value.items()}
    if isinstance(value, list) and len(value) > COLUMN_FROM:
        return columns.put(value)
    return value


def put_together(results: list[Json], raw: bytes) -> list[Json]:
    """The inverse of `taken_apart`; ValueError if the file is not that of these results."""
    try:
        arrays = load(raw)
        ids = {n: unpacked(arrays[n]) for n in arrays if n.endswith(".users")}
        return [_with(result, arrays, ids) for result in results]
    except (SafetensorError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"not the columns of these results: {error}") from error


def _with(value: Any, arrays: Arrays, ids: Mapping[str, list[str]]) -> Any:
    if not isinstance(value, dict):
        return value
    if value.keys() != {COLUMN}:
        return {key: _with(one, arrays, ids) for key, one in value.items()}
    name, _, users = str(value[COLUMN]).partition(" ")
    if not users:
        return list(ids[f"{name}.users"])
    names = ids[f"{users}.users"]
    if f"{name}.texts" in arrays:
        return dict(zip(names, unpacked(arrays[f"{name}.texts"]), strict=True))
    return dict(zip(names, arrays[f"{name}.numbers"].tolist(), strict=True))


def thinned(result: Mapping[str, Any]) -> Json:
    """A result as the summary has it: of many users those at the ends, and quantiles of all."""
    if len(result.get("per_user") or ()) <= COLUMN_FROM:
        return dict(result)
    quantiles: Json = {}
    whole = {k: v for k, v in result.items() if k not in OF_ALL}
    found = _named(whole, set(ends(result)), "", quantiles)
    return {**found, "quantiles": quantiles}


def ends(result: Mapping[str, Any]) -> Iterator[str]:
    """The users who are worst and best off by the row's measure."""
    users = list(result["per_user"])
    merit = measure_of(result).merit(list(result["per_user"].values()))
    order = np.argsort(merit, kind="stable")
    yield from (users[i] for i in (*order[:SUMMARY_USERS], *order[-SUMMARY_USERS:]))


def _named(value: Any, who: set[str], path: str, quantiles: Json) -> Any:
    """Long tables with only some users, and the quantiles of those that are of numbers."""
    if isinstance(value, list) and len(value) > COLUMN_FROM:
        return value[: 2 * SUMMARY_USERS]
    if not isinstance(value, dict):
        return value
    if len(value) <= COLUMN_FROM or not who & value.keys():
        return {
            k: _named(one, who, f"{path}.{k}".lstrip("."), quantiles) for k, one in value.items()
        }
    array = as_array(list(value.values()))
    if array is not None and array.dtype != np.uint8:
        levels = np.quantile(array, QUANTILES).tolist()
        quantiles[path] = {
            "users": len(value),
            **dict(zip(map(str, QUANTILES), levels, strict=True)),
        }
    return {user: one for user, one in value.items() if user in who}
