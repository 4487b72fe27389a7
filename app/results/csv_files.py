"""Tables of a run for a spreadsheet: its users, their clusters, linear models' coefficients.

users.csv         strategy, user, samples, cluster, every measure
clusters.csv      strategy, user, cluster, of the methods that have clusters
coefficients.csv  strategy, user, feature, value, of linear models
statistics.csv    strategy, part, name, estimate, se, low, high, z, p, share, of linear models
"""

from __future__ import annotations

import csv
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from corsage.app.results.frames import user_columns
from corsage.app.results.rowfile import RowFile
from corsage.core.errors import CheckpointError

Json = Mapping[str, Any]
FORMULA = (*"=+-@", *"\uff1d\uff0b\uff0d\uff20", "\t", "\r", "\n")
"""What a spreadsheet would take for the beginning of a formula, full-width signs among them."""
SPREADSHEET_NUMBER = re.compile(r"[+-]?[\d.,]+([eE][+-]?\d+)?")
STATISTICS = ("estimate", "se", "low", "high", "z", "p", "share")
MOST_CELLS = 1_000_000
"""Coefficients that are written, at most: as many lines as a spreadsheet takes; the models have
all."""


def write_tables(folder: Path, results: Sequence[Json]) -> None:
    """Write the files into a run folder; one that would be empty is not there."""
    found = [user_columns(dict(row)) for row in results]
    columns = list(dict.fromkeys(name for row in found for name in row))
    users = (line for row in found for line in in_lines([row.get(name) for name in columns]))
    write_plain(folder / "users.csv", columns, users)
    del found, users  # of a million users they are large
    clusters = (
        line
        for row in results
        if (own := row.get("clusters"))
        for line in in_lines([[row["strategy"]] * len(own), [*own], [*own.values()]])
    )
    write_plain(folder / "clusters.csv", ("strategy", "user", "cluster"), clusters)
    head = ("strategy", "user", "feature", "value")
    write_plain(folder / "coefficients.csv", head, coefficients(folder, results))
    lines = (line for row in results for line in statistics(row))
    write(folder / "statistics.csv", ("strategy", "part", "name", *STATISTICS), lines)


def statistics(row: Json) -> Iterator[tuple[Any, ...]]:
    """Coefficients, variances and correlations with what is known of their errors."""
    found = row.get("estimates") or {}
    for one in found.get("coefficients", []):
        yield row["strategy"], "coefficient", one["name"], *map(one.get, STATISTICS)
    for one in found.get("variances", []):
        numbers = {**one, "estimate": one["variance"]}
        yield row["strategy"], "variance", one["level"], *map(numbers.get, STATISTICS)
    for one in found.get("correlations", []):
        name = f"{one['level']}: {one['name']}, {one['other']}"
        yield row["strategy"], "correlation", name, *map(one.get, STATISTICS)


def in_lines(columns: Sequence[list[Any] | None]) -> Iterator[tuple[Any, ...]]:
    """The lines of columns, of which a row may lack some."""
    users = len(next(filter(None, columns), []))
    return zip(*(plainly(own or [None] * users) for own in columns), strict=True)


def plainly(column: list[Any]) -> list[Any]:
    """The cells of a column; numbers are as they are."""
    return [*map(plain, column)] if str in set(map(type, column)) else column


def write(path: Path, head: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """A CSV file, line by line, that is either whole or not there."""
    write_plain(path, head, ([*map(plain, line)] for line in lines))


def write_plain(path: Path, head: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """The same of cells that are plain."""
    rows, temporary = iter(lines), path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    first = next(rows, None)
    if first is None:
        path.unlink(missing_ok=True)
        return
    try:
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(map(plain, head))
            writer.writerow(first)
            writer.writerows(rows)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def plain(value: Any) -> Any:
    """A cell: text that would be a formula begins with an apostrophe, as spreadsheets have it.

    A number is none, whatever its sign.
    """
    if (
        isinstance(value, str)
        and value.startswith(FORMULA)
        and not SPREADSHEET_NUMBER.fullmatch(value)
    ):
        return f"'{value}"
    return value


def coefficients(folder: Path, results: Sequence[Json]) -> Iterator[tuple[str, str, str, float]]:
    """Each user's coefficients in the rows that have linear models; of several classes by class."""
    for row in results:
        name = str(row["strategy"])
        path = folder / name.partition("+")[0] / "models" / f"{name}.safetensors"
        if not path.is_file():
            continue
        try:
            file = RowFile(path)
            head = file.header
            size = int(np.prod(head.shape)) * max(head.num_classes, 1) * len(head.users)
            linear = head.model["model"] == "linear" and head.combination is None
            if not linear or not head.kept or size > MOST_CELLS:
                continue
            file = RowFile(path.read_bytes())
        except CheckpointError:
            continue  # `load` says so
        for found in (alike if file.alike else one_by_one)(file):
            yield plain(name), *found


def alike(file: RowFile) -> Iterator[tuple[str, str, float]]:
    """Coefficients of users whose inputs are prepared alike, computed for all of them at once."""
    from corsage.app.results.user_model import UserModel

    users = file.header.users
    first = UserModel(users[0], file.header, file.own(users[0]))
    rows, labels = first.of_all(file.every), [*map(plain, first.labels)]
    for user, numbers in zip(map(plain, users), rows, strict=True):
        yield from zip(repeat(user), labels, numbers.tolist())


def one_by_one(file: RowFile) -> Iterator[tuple[str, str, float]]:
    """The same of users of whom each has scales of its own."""
    from corsage.app.results.user_model import UserModel

    for user in file.header.users:
        model = UserModel(user, file.header, file.own(user), scales=file.scales(user))
        (numbers,) = model.of_all(lambda name, own=model.arrays: own[name][None])  # type: ignore[misc]
        yield from zip(repeat(plain(user)), map(plain, model.labels), numbers.tolist())
