"""The numbers of a round, and of a row of the table, by paths such as `accuracy/mean`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from corsage.strategies.rounds.results import Summary

Numbers = Mapping[str, float]
FINAL = (
    "worst10",
    "loss",
    "users",
    "never_drawn",
    "gradient_steps",
    "bytes_up",
    "bytes_down",
    "messages",
    "seconds",
)
"""What is told of a row of the table beside its measures."""


def of_round(row: Mapping[str, Any]) -> dict[str, float]:
    """A line of metrics.jsonl; its measure is among all that were asked for."""
    rest = {key: value for key, value in row.items() if key not in ("round", "measures")}
    return dict(flat({**rest, **row.get("measures", {})}))


def of_summary(result: Summary) -> dict[str, float]:
    """A row of the table: each measure, what it cost."""
    found = result.json()
    last = {f"{result.measure}/last10": result.last10}
    return dict(flat({**found["measures"], **{key: found[key] for key in FINAL}})) | last


def flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, float]]:
    """Every number that is finite, by its path."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{key}/")
        elif isinstance(value, int | float) and math.isfinite(value):
            yield f"{before}{key}", float(value)


def group_of(row: str, strategy: str) -> str:
    """What goes before the numbers of a row: `ft` of `fedavg+ft`, `final` of the strategy's own."""
    return row.removeprefix(strategy).removeprefix("+") or "final"
