"""The summary of a run: statistics over users, human units and the table at its end."""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from corsage.app.output.notes import notes, tops
from corsage.app.output.terminal import Airy, Name, heads
from corsage.core.measures import ACCURACY, DASH, Measure, measure_of

Row = Mapping[str, Any]
"""One round of one strategy, as in `metrics.jsonl`."""
Result = Mapping[str, Any]
"""One strategy at its end, as in the JSON summary."""

FAILED_CELL = "failed"
"""What stands where the measure would."""
TEXT_COLUMNS = 120
"""Columns of a table that is printed as text."""
LABEL_COLUMNS = 40
"""Columns of a label of findings from which on it is shortened, where a text needs the room."""

Points = tuple[NDArray[np.float64], NDArray[np.float64]]
"""A line: where, and how high, as shown (percent)."""


def three_digits(value: float) -> str:
    """A number below 1000 with three significant digits and no exponent: 1.23, 12.3, 123."""
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def human_bytes(count: float) -> str:
    """Bytes in decimal units and at most 7 characters: `999 B`, `12.3 kB`, `1.23 MB`."""
    if not math.isfinite(count):
        return DASH
    if count < 999.5:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        count /= 1000
        if count < 999.5:
            return f"{three_digits(count)} {unit}"
    return f"{count:.0f} PB"


def human_count(count: float) -> str:
    """A count in at most 6 characters: exact below 100,000, else with three digits."""
    if count < 100_000:
        return f"{count:,.0f}"
    for unit in ("k", "M"):
        count /= 1000
        if count < 999.5:
            return f"{three_digits(count)}{unit}"
    return f"{three_digits(count / 1000)}G"


def human_seconds(seconds: float) -> str:
    """A duration in at most 6 characters up to 99 days: `120 ms`, `4.2 s`, `3m 20s`, `1h 05m`."""
    if not math.isfinite(seconds):
        return DASH
    seconds = max(seconds, 0.0)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms" if seconds else "0 s"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60}h {minutes % 60:02}m"
    hours = round(seconds / 3600)
    return f"{hours // 24}d {hours % 24:02}h"


def shared_measure(results: Sequence[Result]) -> Measure:
    """The measure of results of one run: they are on the same data."""
    return measure_of(results[0]) if results else ACCURACY


def best(results: Sequence[Result]) -> list[bool]:
    """The results of the best mean among rows of the same users."""
    measure = shared_measure(results)
    return tops(measure, results, [result[measure.name]["mean"] for result in results])


def columns(measure: Measure) -> tuple[str, ...]:
    """The heads of the table."""
    own = (f"{measure.title}\nmean ± std", "last\n10", "worst\n10%", measure.worst)
    return ("strategy", *own, "steps", "bytes\nup", "bytes\ndown", "msgs", "time")


def cells(result: Result) -> list[str]:
    """One strategy's line of the table, in the order of `columns`."""
    measure = measure_of(result)
    found, text = result[measure.name], measure.text
    return [
        str(result["strategy"]),
        f"{text(found['mean'])} ± {text(found['std'])}",
        text(result.get(f"{measure.name}_last10")),
        text(result.get("worst10")),
        text(found[measure.worst]),
        DASH if (steps := result.get("gradient_steps")) is None else human_count(steps),
        human_bytes(result.get("bytes_up", math.nan)),
        human_bytes(result.get("bytes_down", math.nan)),
        human_count(result.get("messages", 0)),
        human_seconds(result.get("seconds", math.nan)),
    ]


def summary_table(
    results: Sequence[Result],
    failed: Mapping[str, str] | None = None,
    without: Collection[str] = (),
) -> Table:
    """One line a strategy; the best mean is bold, users without a reply are named below.

    `failed` has the strategies without a result, and why they have none; columns `without`.
    """
    failed = failed or {}
    table = Airy(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    titles = columns(shared_measure(results))
    shown = [place for place, title in enumerate(titles) if title not in without]
    heads(table, [titles[place] for place in shown])
    for result, top in zip(results, best(results), strict=True):
        own, style = cells(result), "bold" if top else ""
        table.add_row(
            Name(own[0], style), Text(own[1], style), *(Text(own[place]) for place in shown[2:])
        )
    for name in failed:
        table.add_row(Name(name), Text(FAILED_CELL, "red"), *[DASH] * (len(table.columns) - 2))
    lines = [note for result in results if (note := dropped_note(result, names=3))]
    lines += [f"{name} failed: {why}" for name, why in failed.items()]
    lines += notes(results)
    if lines:
        table.caption = Text("\n".join(lines))
        table.caption_justify = "left"
    return table


def dropped_note(result: Result, names: int) -> str:
    """Users whose replies were dropped, and how often, the worst first; `` if none."""
    dropped = {str(u): int(n) for u, n in (result.get("dropped") or {}).items() if n}
    if not dropped:
        return ""
    order = sorted(dropped, key=lambda user: (-dropped[user], user))
    named = ", ".join(f"{user} ({dropped[user]})" for user in order[:names])
    more = f" and {len(order) - names} more users" if len(order) > names else ""
    return f"{result['strategy']}: {sum(dropped.values())} dropped replies: {named}{more}"


def never_drawn(results: Sequence[Result]) -> str:
    """A sentence on users who never trained; strategies with as many of them are named together."""
    same: dict[str, list[str]] = {}
    for result in results:
        if result.get("never_drawn"):
            count = f"{result['never_drawn']} of {result['users']}"
            same.setdefault(count, []).append(str(result["strategy"]))
    counts = "; ".join(f"{count} ({', '.join(names)})" for count, names in same.items())
    return f"Never drawn: {counts}." if counts else ""


def curve_of(result: Result) -> Points:
    """Evaluated rounds and means over users, as shown (percent)."""
    points = np.asarray(result["curve"], dtype=float).reshape(-1, 2)
    return points[:, 0], measure_of(result).factor * points[:, 1]


def evaluated(rows: Iterable[Row], strategy: str) -> list[Row]:
    """A strategy's evaluated rounds, in order; of a round that was repeated only the last."""
    own = (row for row in rows if row["strategy"] == strategy)
    latest = {int(row["round"]): row for row in own if measure_of(row).name in row}
    return [latest[number] for number in sorted(latest)]


def plain(*parts: RenderableType) -> str:
    """Tables one below the other, as the terminal shows them, without colours."""
    file = io.StringIO()
    console = Console(
        file=file, width=TEXT_COLUMNS, force_jupyter=False, force_terminal=False, color_system=None
    )
    for part in parts:
        console.print(part, crop=False)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def findings(results: Sequence[Result]) -> Iterator[tuple[str, list[list[str]]]]:
    """Findings of the methods at their ends: titles after the strategy's name, and rows.

    A result may have `findings`, a list of `{"title": ..., "rows": [[label, text], ...]}`.
    """
    for result in results:
        for found in result.get("findings", []):
            yield f"{result['strategy']}: {found['title']}", found["rows"]


def findings_tables(results: Sequence[Result]) -> list[Group]:
    """The findings for the terminal; text, not markup: it is printed as it is."""
    tables: list[Group] = []
    for title, rows in findings(results):
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for name, *texts in rows:
            table.add_row(Name(name, least=LABEL_COLUMNS), *map(Text, texts))
        tables.append(Group(Text(f"\n{title}", style="bold"), table))
    return tables


def findings_section(results: Sequence[Result]) -> str:
    """The findings for the report; empty if there are none."""
    parts = []
    for title, rows in findings(results):
        lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
        body = "\n".join(f"<tr>{line}</tr>" for line in lines)
        table = f'<div class="wide"><table><tbody>{body}</tbody></table></div>'
        parts.append(f'<section class="findings"><h3>{escape(title)}</h3>\n{table}</section>')
    return "\n".join(["<h2>Findings</h2>", *parts]) if parts else ""
