"""A chart as numbers: what is drawn, between which limits, and where the ticks are.

Nothing here knows of HTML; `drawing.py` draws what is said here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from corsage.app.output.summary import human_bytes, human_seconds
from corsage.core.arrays import Floats
from corsage.core.measures import DASH, Measure, four_digits

LINE_POINTS = 240
"""Points of a line that are drawn: more of them nobody can tell apart."""
LIMIT_WIDTHS = 4.0
"""How many of the series' own widths the limits reach beyond their middle."""
LEAST_WIDTH = 0.5
"""A width that is taken for a series that is flat, as a share of where it lies."""
TICK_STEPS = (1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True)
class Series:
    """One strategy's line or points.

    Parameters
    ----------
    name : the strategy's row in the table.
    x, y : the points, in the units that are shown.
    low, high : the edges of a band around them, if there is one.
    names : whose points they are, if they are users'.
    across : a level line through the last point, for what has but one.
    note : words behind the name, such as `sends nothing`.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    names: Sequence[str] = ()
    across: bool = False
    note: str = ""

    @property
    def values(self) -> list[float]:
        """All that the chart should have room for."""
        return [*self.y, *self.low, *self.high]


@dataclass(frozen=True)
class Axis:
    """Where values lie, and how they are written: `round`, `bytes`, `seconds`, `percent`, ..."""

    label: str
    kind: str
    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float:
        """Place of a value: 0 at the low end, 1 at the high end."""
        low, high, value = (self.scaled(v) for v in (self.low, self.high, value))
        return (value - low) / ((high - low) or 1.0)

    def scaled(self, value: float) -> float:
        """The value, or its logarithm; what has none is far to the left."""
        return (math.log10(value) if value > 0 else -99.0) if self.log else value

    def ticks(self) -> list[tuple[float, str]]:
        """Values to mark, and how each is written."""
        values = log_ticks(self.low, self.high) if self.log else even_ticks(self)
        step = values[1] - values[0] if len(values) > 1 else abs(values[0] if values else 1.0)
        return [(value, tick_text(value, self.kind, step)) for value in values]

    def below(self) -> str:
        """The marks of an axis from left to right, as the page has them."""
        return "".join(
            f'<span style="left:{100 * self.place(v):.2f}%">{escape(text)}</span>'
            for v, text in self.ticks()
        )

    def json(self) -> dict[str, Any]:
        """As the page's script has it."""
        limits = {"low": short(self.low), "high": short(self.high)}
        return {"label": self.label, "kind": self.kind, **limits, "log": self.log}


@dataclass(frozen=True)
class Chart:
    """One chart.

    Parameters
    ----------
    title, caption : what it is called, and what one has to know to read it.
    x, y : its axes.
    series : what is drawn, one a strategy.
    choice : which tab of which tabs shows it: what is measured, and against what.
    points : users as points instead of lines.
    zero : a value of y that is marked by a rule, for instance 0 for differences.
    basis : what needs no model at all, and in words what that is.
    bounds : beyond these no limit of y may go.
    extra : shown only where tabs work.
    """

    title: str
    caption: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    choice: tuple[str, str]
    points: bool = False
    zero: float | None = None
    basis: tuple[float, str] | None = None
    bounds: tuple[float, float] = (-math.inf, math.inf)
    extra: bool = False
    ends: bool = field(default=True)

    def beyond(self, value: float) -> bool:
        """True if a value is not within the limits of y."""
        return not self.y.low <= value <= self.y.high

    def farthest(self, series: Series, side: float) -> float:
        """The value farthest up, or down, of a line and its band, or else the limit there."""
        ends = () if self.points else series.high if side > 0 else series.low
        values = finite([*series.y, *ends])
        return max([*values, self.y.low]) if side > 0 else min([*values, self.y.high])

    def json(self, order: Sequence[str]) -> dict[str, Any]:
        """As the page's script has it; strategies are numbers in their order in the table."""
        return {
            "x": self.x.json(),
            "y": self.y.json(),
            "points": self.points,
            "bounds": [None if math.isinf(b) else b for b in self.bounds],
            "series": [
                {
                    "s": order.index(s.name),
                    "x": [short(v) for v in s.x],
                    "y": [short(v) for v in s.y],
                    "low": [short(v) for v in s.low],
                    "high": [short(v) for v in s.high],
                    "names": list(s.names),
                }
                for s in self.series
            ],
        }


@dataclass(frozen=True)
class Strip:
    """A row of `Strips`: dots on the axis, and what they come to.

    Parameters
    ----------
    name : the row's.
    mean : has a mark, and stands beside the row as a number.
    low, high : the ends of the shaded part.
    values, names : the dots, and whose they are.
    median, tenth : rules, the second one dashed, if there are any.
    """

    name: str
    mean: float
    low: float
    high: float
    values: Sequence[float] = ()
    names: Sequence[str] = ()
    median: float | None = None
    tenth: float | None = None

    def cut(self, axis: Axis) -> list[tuple[bool, float]]:
        """The ends of the shaded part that the axis has no room for: whether low, and where."""
        ends = ((True, self.low), (False, self.high))
        return [(left, v) for left, v in ends if (v < axis.low if left else v > axis.high)]


@dataclass(frozen=True)
class Strips:
    """A chart of rows below each other, all on one axis; `choice` and `extra` as of a `Chart`."""

    title: str
    caption: str
    x: Axis
    strips: Sequence[Strip]
    choice: tuple[str, str]
    extra: bool = False


Figure = Chart | Strips
"""Anything that is drawn, on a page or on paper."""


def short(value: float) -> float | int | None:
    """A number in few characters, five digits; None for what is none."""
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.5g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def finite(values: Iterable[float | None]) -> list[float]:
    """Those that are numbers."""
    return [float(v) for v in values if v is not None and math.isfinite(v)]


def thinned(count: int, most: int = LINE_POINTS) -> list[int]:
    """At most so many of the places 0 .. count - 1, evenly, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(v) for v in np.linspace(0, count - 1, most).tolist()})


def limits(
    series: Sequence[Series], bounds: tuple[float, float] = (-math.inf, math.inf)
) -> tuple[float, float]:
    """Between which values an axis goes: all of them, unless some are far from most strategies.

    Where a measure has two bounds nothing is far. The script has the same rule (`limits`).
    """
    found = [finite(s.values) for s in series]
    found = [values for values in found if values]
    if not found:
        return 0.0, 1.0
    low, high = min(map(min, found)), max(map(max, found))
    if not all(map(math.isfinite, bounds)):
        middle, reach = usual(found)
        low, high = max(low, middle - reach), min(high, middle + reach)
    room = 0.06 * (high - low) or 0.06 * abs(high) or 1.0
    return max(low - room, bounds[0]), min(high + room, bounds[1])


def usual(found: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The middle of most strategies, and how far from there a value is still near."""
    quantiles = sorted(
        (np.quantile(values, [0.1, 0.5, 0.9]).tolist() for values in found), key=lambda q: abs(q[1])
    )
    middle = quantiles[(len(quantiles) - 1) // 2][1]
    widths = sorted(high - low for low, _, high in quantiles)
    width = max(widths[(len(widths) - 1) // 2], LEAST_WIDTH * abs(middle))
    return middle, LIMIT_WIDTHS * width or math.inf


def even_ticks(axis: Axis, about: int = 5) -> list[float]:
    """Whole multiples of 1, 2 or 5 times a power of ten within the limits."""
    span = (axis.high - axis.low) or 1.0
    raw = span / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s * power for s in TICK_STEPS if s * power >= raw * 0.999)
    if axis.kind in ("round", "count"):
        step = max(step, 1.0)
    first = math.ceil(axis.low / step - 1e-9)
    last = math.floor(axis.high / step + 1e-9)
    return [n * step for n in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, and between them 2 and 5 where they are few; at most about six."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    parts = (1.0, 2.0, 5.0) if high < 50 * low else (1.0,)
    every = max(1, (last - first) // 5)
    powers = (10.0**n for n in range(first, last + 1, every))
    return [p * part for p in powers for part in parts if low <= p * part <= high * 1.001]


def tick_text(value: float, kind: str, step: float) -> str:
    """A tick's value as it is written beside the axis."""
    if kind == "bytes":
        return human_bytes(value).replace(".00 ", " ").replace(".0 ", " ")
    if kind == "seconds":
        return human_seconds(value) if value >= 1 or not value else f"{value:.3g} s"
    size = max(abs(value), abs(step))
    if size >= 1e6 or 0 < size < 1e-3:
        return f"{value:.3g}"
    places = max(0, -math.floor(math.log10(abs(step)) + 1e-9)) if step else 0
    return f"{value:,.{places}f}"


def kind_of(measure: Measure) -> str:
    """The kind by which the page writes a measure's numbers."""
    return "percent" if measure.unit == "%" else "number"


def written(value: float | None, kind: str) -> str:
    """A value as a label has it."""
    if value is None or not math.isfinite(value):
        return DASH
    return f"{value:.1f}" if kind in ("percent", "share") else four_digits(value)


def ranked(values: Floats) -> list[float]:
    """Places of users on an axis of shares, each in the middle of its own."""
    return [float(v) for v in (np.arange(values.size) + 0.5) * 100 / max(values.size, 1)]
