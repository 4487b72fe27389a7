"""Accuracy against bytes: curves of methods, a panel a data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from corsage.app.output.summary import human_bytes
from corsage.app.report import plots
from corsage.experiments.measured import Point


@dataclass(frozen=True)
class Curve:
    """The points of a method for one seed, and the CPU seconds of its longest run."""

    points: list[Point]
    cpu: float


Curves = dict[str, dict[str, list[Curve]]]
"""By data set and method, one a seed."""


def drawing(curves: Curves, theme: plots.Theme) -> Drawing:
    """A panel a data set, a line a method and seed; what is one point is a diamond."""
    figure = Drawing(
        figsize=(10.5, 8.0), dpi=plots.DPI, facecolor=theme.paper, layout="constrained"
    )
    FigureCanvasAgg(figure)
    grid = figure.subplots(-(-len(curves) // 2), min(len(curves), 2), squeeze=False)
    for axes in grid.flat[len(curves) :]:
        axes.set_visible(False)
    for axes, (title, found) in zip(grid.flat, curves.items(), strict=False):
        panel(axes, title, found, theme)
    handles, names = grid.flat[0].get_legend_handles_labels()
    look: dict[str, Any] = {"frameon": False, "fontsize": 10, "labelcolor": theme.ink}
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), **look)
    return figure


def panel(axes: Axes, title: str, found: Mapping[str, list[Curve]], theme: plots.Theme) -> None:
    """One data set's curves."""
    plots.dress(axes, theme, "bytes up and down", "accuracy over users (%)")
    axes.set_title(title, color=theme.ink, fontsize=11, loc="left")
    look = plots.styles(found, theme)
    for label, own in found.items():
        for number, one in enumerate(own):
            points = np.array(one.points)
            name = label if number == 0 else "_"
            plots.draw(axes, (points[:, 0], 100 * points[:, 1]), name, look[label])
            axes.plot(points[-1:, 0], 100 * points[-1:, 1], "o", ms=5, color=look[label]["color"])
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(base=10))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: human_bytes(int(value))))
    ends = [100 * one.points[-1][1] for own in found.values() for one in own]
    axes.set_ylim(max(min(ends) - 0.8 * (max(ends) - min(ends)) - 5, 0), max(ends) + 1)
