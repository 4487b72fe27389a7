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
    first = str(row.get("measure", "accuracy"))
    measures = {**row.get("per_user_measures", {}), first: row["per_user"]}
    measures = {name: measures[name] for name in sorted(measures, key=lambda n: n != first)}
    train, test = row.get("train_sizes", {}), row.get("test_sizes", {})
    clusters, groups = row.get("clusters", {}), row.get("known_clusters", {})
    untested = [user for user in row.get("untested", []) if user not in row["per_user"]]
    for user in [*row["per_user"], *untested]:
        line = {"strategy": row["strategy"], "user": user, "train": train.get(user)}
        line |= {"test": test.get(user), "cluster": clusters.get(user, groups.get(user))}
        yield line | {name: values.get(user) for name, values in measures.items()}
