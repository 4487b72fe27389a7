"""The plots of a run, fit for a paper: learning, who is left behind, and what it costs to send.

Each function draws one figure from results (and rows, where there are any), saves it if it is
given a path, and returns it. All use matplotlib's objects, never pyplot's global state.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from corsage.app.output.looks import DARK_LINES, LIGHT_LINES, looks
from corsage.app.output.spacing import spaced
from corsage.app.output.summary import (
    Points,
    Result,
    Row,
    curve_of,
    evaluated,
    human_bytes,
    shared_measure,
    traffic,
)
from corsage.core.measures import ACCURACY, Measure, worst_share

SIZE, DPI = (8.0, 4.8), 150
"""Inches and dots an inch: 1200 by 720 pixels."""
MANY = 8
"""Strategies of which each still gets two lines in a legend."""
GAP = 0.055
"""Height of a label beside a line's end, as a share of the plot's."""
BANDS = 4
"""Strategies of which each still gets its band; more of them would only be mud."""
MEAN = "mean {} over users"

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
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": "corsage"})
    return buffer.getvalue()


def finish(figure: Figure, path: Path | str | None) -> Figure:
    """Save the figure, if a path is given."""
    if path is not None:
        Path(path).write_bytes(png(figure))
    return figure


def draw(axes: Axes, points: Points, label: str, style: Style) -> None:
    """One strategy's line, or its only point."""
    look = dict(style)
    if points[0].size == 1:
        look.update(marker="D", ms=7, ls="none", clip_on=False)
    axes.plot(*points, lw=2.2, label=label, gid="curve", **look)


def limits(axes: Axes, values: Sequence[float], measure: Measure = ACCURACY) -> None:
    """The measure's axis: as close as the values allow, never beyond its bounds."""
    low, high = min(values), max(values)
    least, most = measure.bounds
    room = max(0.06 * (high - low), 0.01 * (most if math.isfinite(most) else high) or 1.0)
    axes.set_ylim(max(low - room, least), min(high + room, most + 0.3 * room))


def label_ends(
    axes: Axes,
    ends: Mapping[str, float],
    look: Mapping[str, Style],
    measure: Measure = ACCURACY,
) -> None:
    """Names and final means to the right of the plot, each led to from its line's end."""
    low, high = axes.get_ylim()
    beside = axes.get_yaxis_transform()
    heights = spaced(list(ends.values()), GAP * (high - low), high)
    for (name, end), height in zip(ends.items(), heights, strict=True):
        steps = ([1.005, 1.02, 1.055], [end, height, height])
        axes.add_artist(Line2D(*steps, transform=beside, lw=1.4, clip_on=False, **look[name]))
        words = {"color": look[name]["color"], "fontsize": 10.5, "fontweight": "bold"}
        place: dict[str, Any] = {"transform": beside, "va": "center", "parse_math": False}
        axes.text(1.065, height, f"{name}  {measure.digits(end)}", **words, **place)


def legend(axes: Axes, theme: Theme, order: Mapping[str, float]) -> None:
    """Names to the right of the plot, where they cover nothing, the highest in `order` first."""
    lines = [line for line in axes.get_lines() if line.get_gid() == "curve"]
    lines.sort(key=lambda line: -order[str(line.get_label()).split("\n")[0]])
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0)}
    look: dict[str, Any] = {"frameon": False, "fontsize": 10, "labelcolor": theme.ink}
    many = len(lines) > MANY
    if many:  # one line each, and a figure that is high enough for all of them
        for line in lines:
            line.set_label(str(line.get_label()).replace("\n", "  "))
        height = max(SIZE[1], 0.22 * len(lines) + 0.2)
        cast(Figure, axes.figure).set_size_inches(SIZE[0], height)
    spacing = 0.4 if many else 0.9
    box = axes.legend(handles=lines, borderaxespad=0.0, labelspacing=spacing, **place, **look)
    for text in box.get_texts():
        text.set_parse_math(False)


def learning_curves(
    results: Sequence[Result],
    path: Path | str | None = None,
    rows: Sequence[Row] = (),
    theme: Theme = LIGHT,
) -> Figure:
    """The mean over users against the round; with rows, a band for their middle half."""
    bands, measure = bool(rows) and len(results) <= BANDS, shared_measure(results)
    ylabel = measure.axis(MEAN) + (", middle half shaded" if bands else "")
    figure, axes = canvas(theme, "round", ylabel)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    look = styles((r["strategy"] for r in results), theme)
    seen: list[float] = []
    ends: dict[str, float] = {}
    for result in results:
        name, points = result["strategy"], curve_of(result)
        if not points[0].size:
            continue
        draw(axes, points, name, look[name])
        ends[name] = float(points[1][-1])
        seen.extend(points[1])
        half = evaluated(rows, name) if bands else []
        if len(half) > 1:
            spreads = [r[measure.name] for r in half]
            low, high = ([measure.factor * s[q] for s in spreads] for q in ("q25", "q75"))
            at = [r["round"] for r in half]
            axes.fill_between(at, low, high, color=look[name]["color"], alpha=0.13, lw=0)
            seen.extend(low + high)
    axes.set_xlim(0, max((float(r["rounds"]) for r in results), default=1.0))
    if seen:
        limits(axes, seen, measure)
        if GAP * len(ends) < 1:
            label_ends(axes, ends, look, measure)
        else:
            legend(axes, theme, ends)
    return finish(figure, path)


def over_users(
    results: Sequence[Result], path: Path | str | None = None, theme: Theme = LIGHT
) -> Figure:
    """Users from worst to best, one line a strategy: who is left behind is at the left."""
    measure = shared_measure(results)
    figure, axes = canvas(theme, "users, from worst to best (%)", measure.axis("{} of the user"))
    look = styles((r["strategy"] for r in results), theme)
    worst: dict[str, float] = {}
    axes.axvspan(0, 10, color=theme.faint, alpha=0.45, lw=0)
    seen: list[float] = []
    for result in results:
        name = result["strategy"]
        values = measure.factor * measure.worst_first(list(result.get("per_user", {}).values()))
        if not values.size:
            continue
        worst[name] = worst_share(values, measure=measure)
        # Few users are drawn as such: a dot each, in the middle of its share of the axis.
        dots = {"marker": "o", "ms": 4} if values.size <= 100 else {}
        at = (np.arange(values.size) + 0.5) * 100 / values.size
        label = f"{name}\nworst 10%: {measure.digits(worst[name])}"
        draw(axes, (at, values), label, {**look[name], **dots})
        seen.extend(values)
    if seen:
        limits(axes, seen, measure)
        legend(axes, theme, worst)
    axes.set(xlim=(0, 100), xticks=[0, 10, 25, 50, 75, 100])
    return finish(figure, path)


def against_bytes(
    results: Sequence[Result],
    path: Path | str | None = None,
    rows: Sequence[Row] = (),
    theme: Theme = LIGHT,
) -> Figure:
    """The mean over users against all bytes sent to reach it; a level line where none are."""
    measure = shared_measure(results)
    figure, axes = canvas(theme, "bytes sent up and down (log scale)", measure.axis(MEAN))
    look = styles((r["strategy"] for r in results), theme)
    axes.set_xscale("log")
    ends: dict[str, float] = {}
    seen: list[float] = []
    for result in results:
        name, (spent, means) = result["strategy"], traffic(result, rows)
        if not means.size:
            continue
        ends[name] = float(means[-1])
        if spent[-1] > 0:
            sent = spent > 0
            end = {"marker": "o", "ms": 7, "markevery": [-1]}
            draw(axes, (spent[sent], means[sent]), name, {**look[name], **end})
            seen.extend(means[sent])
        else:
            level = {**look[name], "ls": (0, (2, 2))}
            axes.axhline(ends[name], lw=2.2, gid="curve", label=f"{name}\nsends nothing", **level)
            seen.append(ends[name])
    if seen:
        limits(axes, seen, measure)
        legend(axes, theme, ends)
    byte_axis(axes)
    return finish(figure, path)


def byte_axis(axes: Axes) -> None:
    """Ticks at whole powers of ten, and between them where these are few."""
    low, high = axes.get_xlim()
    steps = (1.0, 2.0, 5.0) if high < 300 * low else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=steps))
    axes.xaxis.set_minor_locator(NullLocator())
    zeros = re.compile(r"\.0+(?= )")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: zeros.sub("", human_bytes(x))))


def write_plots(
    folder: Path | str, results: Sequence[Result], rows: Sequence[Row] = ()
) -> list[Path]:
    """All three plots as PNG files in the folder."""
    paths = [Path(folder) / f"{name}.png" for name in ("learning", "users", "bytes")]
    learning_curves(results, paths[0], rows)
    over_users(results, paths[1])
    against_bytes(results, paths[2], rows)
    return paths
