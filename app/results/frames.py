"""Tables of numbers: pandas frames where pandas is there, else lists of dicts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
COSTS = ("rounds", "bytes_up", "bytes_down", "messages", "seconds", "never_drawn")


def frame(rows: list[Json]) -> Any:
    """The rows as a pandas frame, if pandas is there."""
    try:
        import pandas  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return rows
    return pandas.DataFrame(rows)


def result_rows(row: Json) -> Iterator[Json]:
    """A row of the table: one a measure."""
    first = str(row.get("measure", "accuracy"))
    measures = {first: row[first], **row.get("measures", {})}
    for name, spread in measures.items():
        numbers = {k: v for k, v in spread.items() if not isinstance(v, dict | list)}
        more = {"last10": row.get(f"{name}_last10"), "worst10": row.get("worst10")}
        costs = {k: row.get(k) for k in COSTS}
        line = {"strategy": row["strategy"], "measure": name, **numbers}
        yield {**line, **(more if name == first else {}), **costs}


def user_rows(row: Json) -> Iterator[Json]:
    """Every user of a row, with its cluster, samples and measures."""
    columns = user_columns(row)
    return (dict(zip(columns, line, strict=True)) for line in zip(*columns.values(), strict=True))


def user_columns(row: Json) -> dict[str, list[Any]]:
    """The same as columns: of a million users that is much less work."""
    first = str(row.get("measure", "accuracy"))
    measures = {**row.get("per_user_measures", {}), first: row["per_user"]}
    measures = {name: measures[name] for name in sorted(measures, key=lambda n: n != first)}
    train, test = row.get("train_sizes", {}), row.get("test_sizes", {})
    more = (row.get("estimates") or {}).get("columns", {})
    clusters, groups = row.get("clusters", {}), row.get("known_clusters", {})
    untested = [user for user in row.get("untested", []) if user not in row["per_user"]]
    users = [*row["per_user"], *untested]
    return {
        "strategy": [row["strategy"]] * len(users),
        "user": users,
        "train": [*map(train.get, users)],
        "test": [*map(test.get, users)],
        "cluster": [clusters.get(user, groups.get(user)) for user in users],
        **{name: [*map(own.get, users)] for name, own in {**measures, **more}.items()},
    }
