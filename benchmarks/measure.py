"""One measured cost beside its target, as all benchmarks report it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    measured, target : in `unit`.
    beside : what the bare thing costs, or what the number is made of; the same for lines in a row.
    merit : more is better.
    """

    name: str
    measured: float
    target: float
    unit: str
    beside: str = ""
    merit: bool = False

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        if self.merit:
            return self.measured >= self.target
        return self.measured <= self.target

    def as_json(self) -> dict[str, Any]:
        """The measure as the JSON file has it."""
        return {**vars(self), "ratio": self.measured / self.target, "met": self.met}


def table(title: str, measures: Sequence[Measure]) -> Table:
    """Target, measured and their ratio; what is beside is said below, once for lines in a row."""
    look: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "header_style": "dim"}
    shown = Table(title=title, pad_edge=False, **look)
    for name in ("", "target", "measured", "", "ratio", ""):
        shown.add_column(name, justify="right" if name else "left", no_wrap=True)
    for measure in measures:
        shown.add_row(
            Text(measure.name),
            (">= " if measure.merit else "") + number(measure.target),
            number(measure.measured),
            measure.unit,
            f"{measure.measured / measure.target:.2f}",
            Text("pass", "green") if measure.met else Text("MISS", "bold red"),
        )
    beside = {measure.beside: measure.name for measure in reversed(measures) if measure.beside}
    notes = [f"{name.partition(':')[0]}: {words}" for words, name in reversed(beside.items())]
    shown.caption, shown.caption_justify = Text("\n".join(notes)), "left"
    return shown


def number(value: float) -> str:
    """Three digits, or all that are before the point; no exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
