"""Text that is printed: tables that break no word and cut no number, no blanks at ends."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.constrain import Constrain
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

NAME_COLUMNS = 12
"""Columns of a name that a table has at least."""
ROOMY = 10_000
"""A width that all tables have room in."""


class Bare:
    """A stream whose lines have no blanks at their ends; all else is the stream's."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write lines, of which a table fills all but the last columns with blanks."""
        return int(self.stream.write(re.sub(r" +(?=\n)", "", text)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def terminal(wide: int | None = None, **how: Any) -> Console:
    """The console; `wide`, in columns, is what goes to a file or a pipe."""
    width = None if sys.stdout.isatty() else wide
    return Console(file=Bare(sys.stdout), width=width, **how)  # type: ignore[arg-type]


class Name(Text):
    """A name in a cell: where there is no room it is shortened in its middle."""

    def __init__(self, name: str, style: str = "", least: int = NAME_COLUMNS) -> None:
        super().__init__(name, style)
        self.least = least

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(self.cell_len, self.least), self.cell_len)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        yield from Text(shortened(self.plain, options.max_width), self.style).render(console, "\n")


def shortened(name: str, width: int) -> str:
    """A name in so many columns, with an ellipsis for its middle."""
    if len(name) <= width:
        return name
    head = width // 2
    return f"{name[:head]}\N{HORIZONTAL ELLIPSIS}{name[len(name) - (width - head - 1) :]}"


class Airy(Table):
    """A table of names and numbers, with 1 to 4 blanks between columns, as there is room.

    Where there is none for all columns, they are printed one part below the other, each with the
    names, which are `Name`s.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for gap in (3, 2, 1, 0):
            self.padding = (0, gap, 0, 0)
            if console.measure(self, options=options.update(max_width=ROOMY)).maximum <= (
                options.max_width
            ):
                break
        parts = list(self.parts(console, options))
        wide = options.update(max_width=ROOMY)
        for part in parts:
            part.caption = self.caption if len(parts) == 1 else None
            yield from Table.__rich_console__(part, console, options)
            yield Text("", end="\n" * (part is not parts[-1]))
        if len(parts) > 1 and self.caption:  # as wide as the widest of them
            most = max(console.measure(part, options=wide).maximum for part in parts)
            yield Constrain(Text(str(self.caption), "table.caption"), most)

    def parts(self, console: Console, options: ConsoleOptions) -> Iterator[Airy]:
        """The table, or as many columns of it at a time as there is room for."""
        first, wide = 1, options.update(max_width=ROOMY)
        while first < len(self.columns) or first == 1:
            last = len(self.columns)
            while last > first + 1 and self.of(first, last).least(console, wide) > (
                options.max_width
            ):
                last -= 1
            yield self.of(first, last)
            first = max(last, 2)

    def of(self, first: int, last: int) -> Airy:
        """The table of the names and these columns."""
        found, columns = copy(self), [self.columns[0], *self.columns[first:last]]
        found.columns = [replace(column, _index=i) for i, column in enumerate(columns)]
        return found

    def least(self, console: Console, options: ConsoleOptions) -> int:
        """The columns that it takes, with names as short as can be."""
        names = self.columns[0]
        widths = [console.measure(cell, options=options) for cell in names.cells]
        spare = max((w.maximum - w.minimum for w in widths), default=0)
        return console.measure(self, options=options).maximum - spare


def heads(table: Table, names: Sequence[str]) -> None:
    """Give a table its columns; all but the first one are numbers, which are never cut."""
    for place, name in enumerate(names):  # Text, not markup: a name with brackets is a name
        table.add_column(
            Text(name), justify="right" if place else "left", no_wrap=place > 0, vertical="bottom"
        )
