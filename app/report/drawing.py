"""Charts as HTML and SVG that fit any width.

A drawing is 1000 wide in its own units and is stretched to the place there is; strokes and words
are not, for words, ticks and marks are HTML beside it. So one drawing is legible on a phone and on
a wide screen, on light and dark paper, printed, and without any script.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from corsage.app.report.chart import Chart, Series, written
from corsage.app.report.style import Look, spaced

DRAWING_WIDTH, HEIGHT = 1000, 300
LABEL = 16
"""Pixels that a label at a line's end needs."""
LABEL_HEIGHT = 20
"""Pixels of height for each labelled strategy, so that their lines come apart."""
MOST_LABELS = 30
"""Lines up to which a drawing grows with them; where more are shown there is the legend."""
MARKED = 5
"""Marks along a line."""
CUT_AT = 1_000_000
"""Heights beyond the drawing at which a line is cut: nobody looks there."""
MOST_DOTS = 60
"""Users up to which each is a dot on its line."""

MARK_SHAPES = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0",
    "M-3.5-3.5h7v7h-7z",
    "M0-4.8L4.5 3.4H-4.5z",
    "M0-5L4.4 0 0 5-4.4 0z",
    "M0 4.8L4.5-3.4H-4.5z",
    "M-1.4-4.5h2.8v3.1h3.1v2.8h-3.1v3.1h-2.8v-3.1h-3.1v-2.8h3.1z",
    "M-4.2-2.4L-2.4-4.2 0-1.8 2.4-4.2 4.2-2.4 1.8 0 4.2 2.4 2.4 4.2 0 1.8-2.4 4.2-4.2 2.4-1.8 0z",
    "M0-5l1.3 3.4 3.6.2-2.8 2.3.9 3.5L0 2.5-3 4.4l.9-3.5-2.8-2.3 3.6-.2z",
)
"""Circle, square, triangle, diamond, triangle on its head, plus, cross and star."""

Looks = Mapping[str, Look]


def definitions() -> str:
    """The marks, once a page."""
    marks = "".join(f'<path id="m{n}" d="{d}"/>' for n, d in enumerate(MARK_SHAPES))
    return f'<svg width="0" height="0" class="defs" aria-hidden="true"><defs>{marks}</defs></svg>'


def mark(look: Look, css: str, style: str = "", value: float | None = None) -> str:
    """A strategy's mark at a place."""
    data = "" if value is None else f' data-v="{value:.6g}"'
    return (
        f'<svg class="mark c{look.colour} {css}" viewBox="-6 -6 12 12"{style}{data} '
        f'aria-hidden="true"><use href="#m{look.mark}"/></svg>'
    )


def sample(look: Look) -> str:
    """A piece of a strategy's line with its mark, for legends and tables."""
    return (
        '<svg class="sample" viewBox="0 0 34 12" aria-hidden="true">'
        f'<path class="line c{look.colour} d{look.dash}" d="M1 6H33"/>'
        f'<g class="c{look.colour}" transform="translate(17 6)"><use class="dot" '
        f'href="#m{look.mark}"/></g></svg>'
    )


def legend(names: Sequence[str], looks: Looks) -> str:
    """All strategies, each a button that hides and shows it on the whole page."""
    buttons = "".join(
        f'<button type="button" class="toggle" aria-pressed="true" data-s="{n}">'
        f"{sample(looks[name])}<span>{escape(name)}</span></button>"
        for n, name in enumerate(names)
    )
    every = '<button type="button" class="every extra"></button>' if len(names) > 1 else ""
    return f'<div class="legend" role="group" aria-label="strategies shown">{buttons}{every}</div>'


class Frame:
    """Where values of a chart are on its drawing.

    Parameters
    ----------
    chart : what is drawn.
    order : all strategies, as the table has them.
    first : those that are seen at first.
    """

    def __init__(self, chart: Chart, order: Sequence[str], first: Sequence[str]) -> None:
        self.chart, self.order = chart, order
        self.labelled = chart.ends and chart.choice[1] != "test size"
        seen = len(chart.series)
        if seen > MOST_LABELS:
            seen = sum(series.name in first for series in chart.series)
        self.height = max(HEIGHT, LABEL_HEIGHT * seen if self.labelled else 0)
        self.crowded = LABEL * len(chart.series) > self.height

    def left(self, value: float) -> float:
        """From the left, in the drawing's units."""
        return DRAWING_WIDTH * min(max(self.chart.x.place(value), -0.01), 1.0)

    def top(self, value: float) -> float:
        """From the top, in pixels, which are the drawing's units of height."""
        if not math.isfinite(value):
            value = self.chart.y.high
        far = CUT_AT * self.height
        return min(max(self.height * (1.0 - self.chart.y.place(value)), -far), far)

    def css(self, series: Series) -> str:
        """The class of all that belongs to a strategy."""
        return f"s-{self.order.index(series.name)}"


def figure(
    chart: Chart, order: Sequence[str], looks: Looks, number: int, first: Sequence[str]
) -> str:
    """A chart, its title and what one has to know to read it."""
    frame = Frame(chart, order, first)
    extra = " extra" if chart.extra else ""
    of, against = (escape(word, quote=True) for word in chart.choice)
    ends = " ends" * frame.labelled + " crowded" * (frame.labelled and frame.crowded)
    parts = [svg(frame, looks), ticks(frame), marks(frame, looks), flags(frame, looks)]
    if chart.basis:
        parts.append(basis(frame, *chart.basis))
    if frame.labelled:
        parts.append(labels(frame, looks))
    return (
        f'<figure class="view{extra}" data-chart="{number}" data-of="{of}" '
        f'data-against="{against}">\n<h3>{escape(chart.title)}</h3>\n'
        f'<p class="axis">{escape(chart.y.label)}</p>\n'
        f'<div class="plot{ends}" style="height:{frame.height}px">{"".join(parts)}</div>\n'
        f'<p class="axis below">{escape(chart.x.label)}</p>\n'
        f"<figcaption>{escape(chart.caption)}</figcaption></figure>"
    )


def svg(frame: Frame, looks: Looks) -> str:
    """The lines, bands and rules."""
    chart, height = frame.chart, frame.height
    rules = "".join(f"M0 {frame.top(v):.1f}H{DRAWING_WIDTH}" for v, _ in chart.y.ticks())
    inner = "".join(strategy(frame, series, looks[series.name]) for series in chart.series)
    zero = (
        f'<path class="zero" d="M0 {frame.top(chart.zero):.1f}H{DRAWING_WIDTH}"/>'
        if chart.zero is not None
        else ""
    )
    if chart.basis:
        zero += f'<path class="base" d="M0 {frame.top(chart.basis[0]):.1f}H{DRAWING_WIDTH}"/>'
    names = ", ".join(series.name for series in chart.series)
    label = escape(f"{chart.title}: {names}", quote=True)
    return (
        f'<svg class="area" viewBox="0 0 {DRAWING_WIDTH} {height}" preserveAspectRatio="none" '
        f'role="img" aria-label="{label}"><path class="grid" d="{rules}"/>'
        f'<g class="fit">{zero}{inner}</g></svg>'
    )


def strategy(frame: Frame, series: Series, look: Look) -> str:
    """One strategy's band and line, or its users' dots with their whiskers."""
    points = [(frame.left(x), frame.top(y)) for x, y in zip(series.x, series.y, strict=True)]
    colour = f"c{look.colour}"
    parts = []
    if frame.chart.points:
        if series.low:
            parts.append(f'<path class="whisker {colour}" d="{whiskers(frame, series)}"/>')
        parts.append(f'<path class="dots {colour}" d="{dots(points)}"/>')
    else:
        if len(series.low) > 1:
            parts.append(f'<path class="band {colour}" d="{band(frame, series)}"/>')
        parts.append(line(points, series, look))
        if series.names and len(points) <= MOST_DOTS:
            parts.append(f'<path class="dots {colour}" d="{dots(points)}"/>')
    return f'<g class="{frame.css(series)}">{"".join(parts)}</g>'


def line(points: Sequence[tuple[float, float]], series: Series, look: Look) -> str:
    """A strategy's line, and how far right it ended; a level one where there is but one point."""
    css = f"c{look.colour} d{look.dash}"
    end_x, end_y = points[-1]
    if series.across:
        return f'<path class="line level {css}" d="M0 {end_y:.1f}H{DRAWING_WIDTH}"/>'
    drawn = f'<path class="line {css}" d="{path(points)}"/>'
    if end_x < DRAWING_WIDTH - 1 and not series.names:
        drawn += f'<path class="carry {css}" d="M{end_x:.1f} {end_y:.1f}H{DRAWING_WIDTH}"/>'
    return drawn


def path(points: Sequence[tuple[float, float]]) -> str:
    """A line through points."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def dots(points: Sequence[tuple[float, float]]) -> str:
    """Lines of no length, which round ends make to dots however the drawing is stretched."""
    return "".join(f"M{x:.1f} {y:.1f}h0" for x, y in points)


def band(frame: Frame, series: Series) -> str:
    """The area between a band's edges."""
    there = [(frame.left(x), frame.top(y)) for x, y in zip(series.x, series.high, strict=True)]
    back = [(frame.left(x), frame.top(y)) for x, y in zip(series.x, series.low, strict=True)]
    return path(there + back[::-1]) + "z"


def whiskers(frame: Frame, series: Series) -> str:
    """A line from the low to the high end at each point."""
    ends = zip(series.x, series.low, series.high, strict=True)
    return "".join(
        f"M{frame.left(x):.1f} {frame.top(low):.1f}V{frame.top(high):.1f}" for x, low, high in ends
    )


def ticks(frame: Frame) -> str:
    """Ticks and labels at the left and below."""
    chart = frame.chart
    left = "".join(
        f'<span style="top:{frame.top(v):.1f}px">{escape(text)}</span>'
        for v, text in chart.y.ticks()
    )
    below = chart.x.below()
    return f'<div class="left">{left}</div><div class="below">{below}</div>'


def basis(frame: Frame, value: float, answer: str) -> str:
    """A line at the level that needs no model."""
    hidden = ";visibility:hidden" if frame.chart.beyond(value) else ""
    said = f"{written(value, frame.chart.y.kind)} without a model"
    style = f"top:{frame.top(value):.1f}px{hidden}"
    title = escape(f"always {answer}", quote=True)
    return f'<span class="basis" style="{style}" data-v="{value:.6g}" title="{title}">{said}</span>'


def marks(frame: Frame, looks: Looks) -> str:
    """A few marks along each line, and one at its end, where they are to be seen."""
    if frame.chart.points or any(series.names for series in frame.chart.series):
        return ""
    found = []
    for number, series in enumerate(frame.chart.series):
        for i in marked([frame.left(x) for x in series.x], number):
            if not frame.chart.beyond(series.y[i]):
                place = (
                    f"left:{frame.left(series.x[i]) / 10:.2f}%;top:{frame.top(series.y[i]):.1f}px"
                )
                style = f' style="{place}"'
                found.append(mark(looks[series.name], frame.css(series), style, series.y[i]))
    return "".join(found)


def marked(places: Sequence[float], number: int) -> list[int]:
    """At which points of a line marks are: its end, and some that others' marks do not cover."""
    if not places:
        return []
    step = DRAWING_WIDTH / MARKED
    wanted = [(n + (number * 2 % 5 + 1) / 6) * step for n in range(MARKED)]
    inside = [w for w in wanted if places[0] <= w < places[-1] - step / 4]
    near = {min(range(len(places)), key=lambda i: abs(places[i] - w)) for w in inside}
    return sorted({len(places) - 1, *near})


def flags(frame: Frame, looks: Looks) -> str:
    """Signs of lines and bands beyond the limits: one outlier must not flatten all others.

    The script puts them anew (`signs`), for limits follow the rows that are shown.
    """
    found = []
    for side, arrow, edge in ((1.0, "\u25b2", "up"), (-1.0, "\u25bc", "down")):
        chart = frame.chart
        ends = [(series, chart.farthest(series, side)) for series in chart.series]
        beyond = [(series, value) for series, value in ends if chart.beyond(value)]
        for number, (series, value) in enumerate(beyond):
            text = escape(f"{arrow} {series.name} {written(value, chart.y.kind)}")
            place = f"{'top' if side > 0 else 'bottom'}:{2 + 15 * number}px;left:100%"
            css = f"flag {edge} flip c{looks[series.name].colour} {frame.css(series)}"
            found.append(f'<span class="{css}" style="{place}">{text}</span>')
    return "".join(found)


def labels(frame: Frame, looks: Looks) -> str:
    """Names and last values at the right of the drawing, each led to from its line's end."""
    inside = [min(max(frame.top(s.y[-1]), 0.0), float(frame.height)) for s in frame.chart.series]
    placed = spaced(inside, LABEL, frame.height)
    leads, words = [], []
    for series, end, height in zip(frame.chart.series, inside, placed, strict=True):
        look, css = looks[series.name], frame.css(series)
        text = f"{written(series.y[-1], frame.chart.y.kind)} {series.name}"
        words.append(
            f'<span class="c{look.colour} {css}" style="top:{height:.1f}px" '
            f'data-v="{series.y[-1]:.6g}" title="{escape(series.note, quote=True)}">'
            f"{escape(text)}</span>"
        )
        leads.append(f'<path class="c{look.colour} {css}" d="M0 {end:.1f}L18 {height:.1f}"/>')
    return (
        f'<svg class="leads" width="18" height="{frame.height}" aria-hidden="true">{"".join(leads)}'
        f'</svg><div class="names">{"".join(words)}</div>'
    )
