"""The rounds of a strategy, as its `metrics.jsonl` has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corsage.core.errors import CorsageError

COUNTS = ("round", "users", "dropped", "seconds", "bytes_up", "bytes_down", "messages")
"""Numbers that every row of the metrics has."""


def names_of(config: Mapping[str, Any]) -> list[str]:
    """The strategies of a run."""
    given = config.get("strategy", "")
    return given.split(",") if isinstance(given, str) else list(given)


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rounds in a strategy's metrics."""
    return readable_rows(folder)[0]


def readable_rows(folder: Path) -> tuple[list[dict[str, Any]], int]:
    """The rounds in a strategy's metrics, in order, and how many lines are damaged.

    A line that a crash cut short, at the end, is none.
    """
    try:
        raw = (folder / "metrics.jsonl").read_bytes()
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise CorsageError(f"{error.filename}: cannot be read ({error.strerror}).") from error
    lines = raw.split(b"\n")[:-1]
    rows: dict[int, dict[str, Any]] = {}
    for line in lines:
        row = read_row(line, folder.name)
        if row and row["round"] > max(rows, default=0):
            rows[row["round"]] = row
    return list(rows.values()), len(lines) - len(rows)


def read_row(line: bytes, strategy: str) -> dict[str, Any] | None:
    """A line of metrics; None if it is damaged."""
    try:
        row = json.loads(line)
        sound = row["strategy"] == strategy and all(row[name] >= 0 for name in COUNTS)
        return row if sound and isinstance(row["round"], int) else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
