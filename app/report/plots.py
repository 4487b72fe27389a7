"""The figures of runs, studies and the bench for a paper: as SVG, PDF and PNG files.

What is drawn, between which limits, and where the ticks are is the report's (`chart.py`). All
use matplotlib's objects, never pyplot's global state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from corsage.app.output.summary import Points
from corsage.app.report import strips as pages
from corsage.app.report.chart import Chart, Series, Strip, Strips, written
from corsage.app.report.chart import Figure as Drawing
from corsage.app.report.style import DARK_LINES, LIGHT_LINES, looks, spaced
from corsage.core.files import write_atomically

SIZE, DPI = (8.0, 4.8), 150
"""Inches and dots an inch: 1200 by 720 pixels."""
MOST_LEGEND_PAIRS = 8
"""Strategies of which each still gets two lines in a legend."""
GAP = 0.055
"""Height of a label beside a line's end, as a share of the plot's."""
MOST_SIGNS = 6
"""Signs at an edge of those who are beyond it."""
DOTS = 100
"""Users up to which each is a dot on its line."""

Style = Mapping[str, Any]


@dataclass(frozen=True)
class Theme:
    """The colours of a figure: paper, ink, and the lines' palette, colour-blind safe."""

    paper: str
    ink: str
    faint: str
    lines: tuple[str, ...]


LIGHT = Theme("#ffffff", "#24292f", "#d8dee4", LIGHT_LINES)
DARK = Theme("#161b22", "#d7dde3", "#333b44", DARK_LINES)
LINES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))


def styles(names: Iterable[str], theme: Theme) -> dict[str, Style]:
    """A line style for each strategy: the same in every plot, different within one."""
    return {
        name: {"color": theme.lines[look.colour], "ls": LINES[look.dash]}
        for name, look in looks(names).items()
    }


def canvas(theme: Theme, xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    """An empty figure of ours: two faint axes, horizontal rules, nothing else."""
    figure = Figure(figsize=SIZE, dpi=DPI, facecolor=theme.paper, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    dress(axes, theme, xlabel, ylabel)
    return figure, axes


def dress(axes: Axes, theme: Theme, xlabel: str, ylabel: str) -> None:
    """The axes of our figures."""
    axes.set_facecolor(theme.paper)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(theme.faint)
    axes.tick_params(colors=theme.ink, length=0, pad=6, labelsize=10)
    axes.grid(axis="y", color=theme.faint, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel(xlabel, color=theme.ink, fontsize=11, labelpad=8)
    axes.set_ylabel(ylabel, color=theme.ink, fontsize=11, labelpad=8)


def png(figure: Figure) -> bytes:
    """The figure as a PNG; the same figure gives the same bytes."""
    return printed(figure, "png")


def printed(figure: Figure, kind: str) -> bytes:
    """The figure as a file; the same figure gives the same bytes."""
    # Words stay words in all of them, to be searched and set anew.
    fonts: dict[Any, Any] = {"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "corsage"}
    buffer, dates = BytesIO(), {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    metadata = {"png": {"Software": "corsage"}, **dates}[kind]
    with rc_context(fonts):
        figure.savefig(buffer, format=kind, dpi=DPI, metadata=metadata)
    return buffer.getvalue()


def draw(axes: Axes, points: Points, label: str, style: Style) -> None:
    """One strategy's line, or its only point."""
    look = dict(style)
    if points[0].size == 1:
        look.update(marker="D", ms=7, ls="none", clip_on=False)
    axes.plot(*points, lw=2.2, label=label, gid="curve", **look)


def label_ends(
    axes: Axes, ends: Mapping[str, float], look: Mapping[str, Style], kind: str = "percent"
) -> None:
    """Names and last values to the right of the plot, each led to from the end of its line."""
    low, high = axes.get_ylim()
    beside = axes.get_yaxis_transform()
    inside = [min(max(end, low), high) for end in ends.values()]
    heights = spaced(inside, GAP * (high - low), high)
    for (name, value), end, height in zip(ends.items(), inside, heights, strict=True):
        steps = ([1.005, 1.02, 1.055], [end, height, height])
        axes.add_artist(Line2D(*steps, transform=beside, lw=1.4, clip_on=False, **look[name]))
        words = {"color": look[name]["color"], "fontsize": 10.5, "fontweight": "bold"}
        place: dict[str, Any] = {"transform": beside, "va": "center", "parse_math": False}
        axes.text(1.065, height, f"{name}  {written(value, kind)}", **words, **place)


def legend(axes: Axes, theme: Theme) -> None:
    """Names to the right of the plot, where they cover nothing."""
    lines = [line for line in axes.get_lines() if line.get_gid() == "curve"]
    if (
        len(lines) > MOST_LEGEND_PAIRS
    ):  # one line each, and a figure that is high enough for all of them
        for line in lines:
            line.set_label(str(line.get_label()).replace("\n", "  "))
        height = max(SIZE[1], 0.22 * len(lines) + 0.2)
        cast(Figure, axes.figure).set_size_inches(SIZE[0], height)
    box = axes.legend(
        handles=lines,
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        borderaxespad=0.0,
        labelspacing=0.4 if len(lines) > MOST_LEGEND_PAIRS else 0.9,
        frameon=False,
        fontsize=10,
        labelcolor=theme.ink,
    )
    for text in box.get_texts():
        text.set_parse_math(False)


def picture(
    chart: Drawing, theme: Theme = LIGHT, look: Mapping[str, Style] | None = None
) -> Figure:
    """A figure of its own; `look` if it is one of several with the same names."""
    look = look or styles(names_in(chart), theme)
    if isinstance(chart, Strips):
        return rows_of(chart, theme, look)
    figure, axes = canvas(theme, chart.x.label, chart.y.label)
    axes.set(xscale="log" if chart.x.log else "linear", xlim=(chart.x.low, chart.x.high))
    room = 0.01 * (chart.y.high - chart.y.low)  # for lines that run along the edge
    axes.set_ylim(chart.y.low - room, chart.y.high + room)
    axes.xaxis.set_minor_locator(NullLocator())
    for axis, said in ((axes.xaxis, chart.x.ticks()), (axes.yaxis, chart.y.ticks())):
        axis.set_ticks([value for value, _ in said], [text for _, text in said])
    for series in chart.series:
        if chart.points:
            _draw_points(axes, series, look[series.name])
            continue
        _draw_series(axes, series, look[series.name])
        if chart.ends and not series.across:  # to where its name stands
            rest = {"lw": 1.0, "color": look[series.name]["color"], "alpha": 0.6}
            axes.plot([series.x[-1], chart.x.high], [series.y[-1]] * 2, **rest)
    if chart.zero is not None:
        axes.axhline(chart.zero, lw=0.8, color=theme.ink)
    signs(axes, chart, look)
    if chart.ends and GAP * len(chart.series) < 1:
        label_ends(axes, {s.name: s.y[-1] for s in chart.series}, look, chart.y.kind)
    else:
        legend(axes, theme)
    return figure


def _draw_series(axes: Axes, series: Series, style: Style) -> None:
    """One strategy's line and its band, or a level line."""
    label = f"{series.name}\n{series.note}" if series.note else series.name
    if series.across:
        level = {**style, "ls": (0, (2, 2))}
        axes.axhline(series.y[-1], lw=2.2, gid="curve", label=label, **level)
        return
    dots = {"marker": "o", "ms": 4} if series.names and len(series.names) <= DOTS else {}
    draw(axes, (np.array(series.x), np.array(series.y)), label, {**style, **dots})
    if len(series.low) > 1:
        axes.fill_between(series.x, series.low, series.high, color=style["color"], alpha=0.13, lw=0)


def _draw_points(axes: Axes, series: Series, style: Style) -> None:
    """One strategy's users as dots, with their intervals."""
    axes.vlines(series.x[: len(series.low)], series.low, series.high, lw=0.8, color=style["color"])
    dots: Style = {"marker": "o", "ms": 3.5, "ls": "none", "gid": "curve", "label": series.name}
    axes.plot(series.x, series.y, color=style["color"], **dots)


def signs(axes: Axes, chart: Chart, look: Mapping[str, Style]) -> None:
    """An arrow and a number for lines and bands that are cut, as the page has them."""
    for side, arrow in ((1.0, "\u25b2"), (-1.0, "\u25bc")):
        cut = [(s, v) for s in chart.series if chart.beyond(v := chart.farthest(s, side))]
        for number, (series, value) in enumerate(cut[:MOST_SIGNS]):
            place: dict[str, Any] = {"xy": (0.995, side > 0), "xycoords": "axes fraction"}
            away = (0.0, side * -(9.0 + 11.0 * number))
            axes.annotate(
                f"{arrow} {series.name} {written(value, chart.y.kind)}", **place, xytext=away,
                textcoords="offset points", ha="right", va="center", fontsize=8,
                color=look[series.name]["color"], parse_math=False,
            )  # fmt: skip


def names_in(chart: Drawing) -> list[str]:
    """Names of rows that something is drawn of."""
    return [one.name for one in (chart.strips if isinstance(chart, Strips) else chart.series)]


def rows_of(chart: Strips, theme: Theme, look: Mapping[str, Style]) -> Figure:
    """Rows below each other: dots, a shaded part, a mark at the mean; arrows where it is cut."""
    figure, axes = canvas(theme, chart.x.label, "")
    figure.set_size_inches(SIZE[0], max(2.0, 0.9 + 0.34 * len(chart.strips)))
    axes.grid(visible=False)
    axes.set(xlim=(chart.x.low, chart.x.high), ylim=(len(chart.strips) - 0.4, -0.6))
    ticks = chart.x.ticks()
    axes.xaxis.set_ticks([value for value, _ in ticks], [text for _, text in ticks])
    labels = [f"{s.name}  {written(s.mean, chart.x.kind)}" for s in chart.strips]
    axes.yaxis.set_ticks(range(len(labels)), labels)
    for text in axes.get_yticklabels():
        text.set_parse_math(False)
    for place, strip in enumerate(chart.strips):
        _draw_strip(axes, chart, place, strip, look[strip.name]["color"])
    return figure


def _draw_strip(axes: Axes, chart: Strips, place: int, strip: Strip, colour: str) -> None:
    """One row."""
    low, high = (float(np.clip(v, chart.x.low, chart.x.high)) for v in (strip.low, strip.high))
    axes.barh(place, high - low, left=low, height=0.7, color=colour, alpha=0.16, lw=0)
    heights = [place + (pages.height(name) - 19) / 38 for name in strip.names]
    axes.plot(strip.values, heights, "o", ms=3, color=colour, alpha=0.45)
    for value, dash in ((strip.median, "-"), (strip.tenth, (0, (2, 2)))):
        if value is not None:
            axes.plot([value] * 2, [place - 0.35, place + 0.35], ls=dash, lw=1.4, color=colour)
    axes.plot([strip.mean], [place], "D", ms=6, color=colour, mec=axes.get_facecolor())
    for left, value in strip.cut(chart.x):
        arrow = "\u25c2" if left else "\u25b8"
        axes.text(
            chart.x.low if left else chart.x.high, place,
            f"{arrow} {written(value, chart.x.kind)}", ha="left" if left else "right",
            va="center", fontsize=8, color=colour,
        )  # fmt: skip


def write_figures(
    folder: Path, figures: Mapping[str, Drawing], formats: Sequence[str]
) -> list[Path]:
    """Each figure in each format, in a folder of its own."""
    paths, names = [], [name for chart in figures.values() for name in names_in(chart)]
    look = styles(names, LIGHT)
    for name, chart in figures.items():
        figure = picture(chart, look=look)
        for kind in formats:
            paths.append(folder / f"{name}.{kind}")
            write_atomically(paths[-1], printed(figure, kind))
    return paths
