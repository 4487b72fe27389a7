"""Outcome of an experiment: figures beside those of the paper or reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from rich import box
from rich.table import Table
from rich.text import Text

from corsage.app.report import plots
from corsage.core.measures import DASH


@dataclass(frozen=True)
class Options:
    """What the user asked for: `choices` are the experiment's own options, `keys` config keys.

    `seeds` is empty if the user named none: the experiment knows how many it needs.
    """

    quick: bool = False
    seeds: tuple[int, ...] = ()
    out: Path = Path("runs")
    choices: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Figure:
    """One number of an experiment, and where it should be.

    Parameters
    ----------
    case : the setting, under which figures are grouped.
    name : what is measured, such as a strategy.
    values : one a seed.
    reference : what the paper or the reference says, None if it says nothing.
    low, high : the band for what counts; infinite where it is open.
    counts : what counts of the seeds, their "mean" or their "median".
    form : how numbers are shown (`.1f`, or `.2g` where they are of many magnitudes).
    """

    case: str
    name: str
    values: tuple[float, ...]
    reference: float | None = None
    low: float = -math.inf
    high: float = math.inf
    counts: Literal["mean", "median"] = "mean"
    form: str = ".1f"

    @classmethod
    def around(
        cls, case: str, name: str, values: Sequence[float], reference: float, width: float
    ) -> Figure:
        """A figure whose band is the reference, plus or minus `width`."""
        return cls(case, name, tuple(values), reference, reference - width, reference + width)

    @property
    def measured(self) -> float:
        """The mean, or the median, over the seeds."""
        return float(np.mean(self.values) if self.counts == "mean" else np.median(self.values))

    @property
    def inside(self) -> bool | None:
        """Whether what counts is in the band; None if there is no band."""
        if math.isinf(self.low) and math.isinf(self.high):
            return None
        return self.low <= self.measured <= self.high

    @property
    def range(self) -> str:
        """The lowest and the highest seed."""
        if len(self.values) < 2:
            return ""
        return f"{self.shown(min(self.values))} .. {self.shown(max(self.values))}"

    @property
    def band(self) -> str:
        """The band in words."""
        if math.isinf(self.low) and math.isinf(self.high):
            return DASH
        if math.isinf(self.high):
            return f">= {self.shown(self.low)}"
        if math.isinf(self.low):
            return f"<= {self.shown(self.high)}"
        return f"{self.shown(self.low)} .. {self.shown(self.high)}"

    def shown(self, value: float, more: int = 0) -> str:
        """A number in the figure's form, with `more` digits."""
        digits, kind = int(self.form[1:-1]) + more, self.form[-1]
        text = f"{value:.{digits}{kind}}"
        if kind == "g":  # as short as can be: .012, 3.4e-5
            return text.removeprefix("0").replace("e-0", "e-") or "0"
        return text

    def as_json(self) -> dict[str, Any]:
        """The figure as the JSON file has it."""
        return {
            "case": self.case,
            "name": self.name,
            "measured": self.measured,
            "counts": self.counts,
            "per_seed": list(self.values),
            "reference": self.reference,
            "low": None if math.isinf(self.low) else self.low,
            "high": None if math.isinf(self.high) else self.high,
            "inside": self.inside,
        }


@dataclass
class Outcome:
    """All figures of an experiment, the results they were made of, and words on both.

    `draw` is the experiment's own picture; without it, it is how far the figures are from their
    references.
    """

    title: str
    unit: str = "%"
    figures: list[Figure] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    draw: Callable[[plots.Theme], Drawing] | None = None

    @property
    def inside(self) -> bool:
        """Whether every figure that has a band is in it."""
        return all(figure.inside is not False for figure in self.figures)


@dataclass(frozen=True)
class Experiment:
    """One experiment: `measure` does it; `choices` are options of its own, the default first."""

    what: str
    takes: str
    measure: Callable[[Options], Outcome]
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def table(outcome: Outcome) -> Table:
    """Reference and measured side by side, the figures of a case under its name."""
    look: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "header_style": "dim"}
    shown = Table(title=outcome.title, pad_edge=False, **look)
    shown.add_column("", overflow="fold", min_width=16)
    for name in ("reference", "measured", "of the seeds", "band"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("", no_wrap=True, min_width=3)
    marks = {True: Text("in", "green"), False: Text("OUT", "bold red"), None: Text("")}
    case = ""
    for figure in outcome.figures:
        if figure.case != case:
            case = figure.case
            shown.add_row(Text(case, "bold"))
        shown.add_row(
            Text(f"  {figure.name}"),
            DASH
            if figure.reference is None
            else figure.shown(figure.reference, more=figure.form.endswith("g")),
            figure.shown(figure.measured, more=1),
            figure.range,
            figure.band,
            marks[figure.inside],
        )
    if outcome.notes:
        shown.caption = Text("\n".join(outcome.notes))
        shown.caption_justify = "left"
    return shown


def picture(outcome: Outcome, theme: plots.Theme = plots.LIGHT) -> bytes:
    """A PNG: the experiment's own picture, or how far each figure is from its reference.

    There, seeds are dots, the band is grey. Without any reference it is the figures themselves.
    """
    if outcome.draw is not None:
        return plots.png(outcome.draw(theme))
    known = [figure for figure in outcome.figures if figure.reference is not None]
    if not known:
        return measured_alone(outcome, theme)
    drawn, axes = plots.canvas(theme, f"measured - reference ({outcome.unit})", "")
    drawn.set_size_inches(plots.SIZE[0], max(2.5, 0.36 * len(known) + 1.4))
    axes.set_title(outcome.title, color=theme.ink, fontsize=11, loc="left")
    axes.grid(visible=False)
    axes.axvline(0, color=theme.ink, lw=1)
    reach = 1.0
    for figure in known:
        assert figure.reference is not None
        ends = (*figure.values, *(e for e in (figure.low, figure.high) if math.isfinite(e)))
        reach = max(reach, *(abs(end - figure.reference) for end in ends))
    axes.set_xlim(-1.15 * reach, 1.15 * reach)
    for y, figure in enumerate(known):
        assert figure.reference is not None
        if figure.inside is not None:
            low, high = (
                float(np.clip(end - figure.reference, -2 * reach, 2 * reach))
                for end in (figure.low, figure.high)
            )
            axes.barh(y, high - low, left=low, height=0.7, color=theme.faint)
        colour = theme.lines[1 if figure.inside is False else 0]
        seeds = [value - figure.reference for value in figure.values]
        axes.plot(seeds, [y] * len(seeds), "o", ms=4, color=colour, alpha=0.5)
        axes.plot([figure.measured - figure.reference], [y], "D", ms=6, color=colour)
    named(axes, known)
    return plots.png(drawn)


def measured_alone(outcome: Outcome, theme: plots.Theme) -> bytes:
    """A PNG of figures that nothing is known to compare with."""
    drawn, axes = plots.canvas(theme, "measured", "")
    drawn.set_size_inches(plots.SIZE[0], max(2.5, 0.36 * len(outcome.figures) + 1.4))
    axes.set_title(outcome.title, color=theme.ink, fontsize=11, loc="left")
    for y, figure in enumerate(outcome.figures):
        axes.plot(
            figure.values, [y] * len(figure.values), "o", ms=4, color=theme.lines[0], alpha=0.5
        )
        axes.plot([figure.measured], [y], "D", ms=6, color=theme.lines[0])
    named(axes, outcome.figures)
    return plots.png(drawn)


def named(axes: Axes, figures: Sequence[Figure]) -> None:
    """A figure's name at each line, the first one above."""
    axes.set_yticks(range(len(figures)), [f"{figure.case}: {figure.name}" for figure in figures])
    axes.invert_yaxis()
