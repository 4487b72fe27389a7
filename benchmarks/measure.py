"""One measured cost beside its target, as all benchmarks report it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Measure:
    """A cost that should be at most its target, or a merit that should be at least that.

    Parameters
    ----------
    name : what was measured.
    measured, target : in `unit`; without a target it is only said.
    beside : what the bare thing costs, or what the number is made of; the same for lines in a row.
    merit : more is better.
    """

    name: str
    measured: float
    target: float | None
    unit: str
    beside: str = ""
    merit: bool = False

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        if self.target is None:
            return True
        if self.merit:
            return self.measured >= self.target
        return self.measured <= self.target

    @property
    def line(self) -> str:
        """The measure in one line, for when it is there."""
        miss = f"  MISS ({number(self.target)})" if self.target is not None and not self.met else ""
        return f"{self.name}: {number(self.measured)} {self.unit}{miss}"

    def as_json(self) -> dict[str, Any]:
        """The measure as the JSON file has it."""
        return {**vars(self), "ratio": self.ratio, "met": self.met}

    @property
    def ratio(self) -> float | None:
        """The measured one, as a share of the target."""
        return None if self.target is None else self.measured / self.target


def table(title: str, measures: Sequence[Measure]) -> Table:
    """Target, measured and their ratio; what is beside is said below, once for lines in a row."""
    look: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "header_style": "dim"}
    shown = Table(title=title, pad_edge=False, **look)
    for name in ("", "target", "measured", "", "ratio", ""):
        place = len(shown.columns)  # names wrap, where a terminal is narrow; numbers do not
        shown.add_column(name, justify="right" if name else "left", no_wrap=place > 0)
    for measure in measures:
        target, ratio, met = "", "", Text()
        if measure.target is not None:
            target = (">= " if measure.merit else "") + number(measure.target)
            ratio = f"{measure.ratio:.2f}"
            met = Text("pass", "green") if measure.met else Text("MISS", "bold red")
        found = number(measure.measured)
        shown.add_row(Text(measure.name), target, found, measure.unit, ratio, met)
    shown.caption, shown.caption_justify = Text("\n".join(notes(measures))), "left"
    return shown


def notes(measures: Sequence[Measure]) -> Iterator[str]:
    """What is beside, under the name of its line, or what the names of several have in common."""
    for words, group in groupby(measures, lambda measure: measure.beside):
        names = [measure.name for measure in group]
        if words:
            yield f"{names[0] if len(names) == 1 else names[0].partition(':')[0]}: {words}"


def number(value: float) -> str:
    """Three digits, or all that are before the point; no exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
