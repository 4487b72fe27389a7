"""Seeds and pictures, as all experiments have them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from corsage.app.report import plots
from corsage.core.arrays import Floats
from corsage.core.errors import ConfigError
from corsage.experiments.outcome import Figure, Options


def chosen_seeds(name: str, options: Options, count: int) -> tuple[int, ...]:
    """Those that were asked for, else the first `count`, or one if it is to be quick."""
    if options.keys:
        words = ", ".join(f"{k.replace('_', '-')}={v}" for k, v in options.keys.items())
        raise ConfigError(f"{words}: {name} has no keys to change; leave it out.")
    return options.seeds or ((0,) if options.quick else tuple(range(count)))


def few(seeds: Sequence[int], count: int) -> list[str]:
    """A word of warning if the seeds are fewer than the bands are for."""
    if len(seeds) >= count:
        return []
    return [f"Bands are for {count} seeds, these are {len(seeds)}."]


def figure(
    case: str,
    name: str,
    values: Floats,
    reference: float | None,
    factor: float,
    counts: Literal["mean", "median"] = "mean",
) -> Figure:
    """A figure, one value a seed, in a band of a factor around the reference if there is one."""
    low, high = (-math.inf, math.inf)
    if reference is not None:
        low, high = reference / factor, reference * factor
    seeds = tuple(values.tolist())
    return Figure(case, name, seeds, reference, low, high, counts=counts, form=".2g")


# Drawing.


def panels(
    theme: plots.Theme, rows: int, columns: int, size: tuple[float, float]
) -> tuple[Drawing, list[list[Axes]]]:
    """Empty axes side by side in our look, with a logarithmic height that all share."""
    drawing = Drawing(figsize=size, dpi=plots.DPI, facecolor=theme.paper, layout="constrained")
    FigureCanvasAgg(drawing)
    grid = drawing.subplots(rows, columns, squeeze=False, sharey=True)
    for axes in grid.flat:
        axes.set_yscale("log")
        plots.dress(axes, theme, "", "")
        axes.yaxis.set_major_locator(LogLocator(base=10))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    return drawing, grid.tolist()


def entitle(axes: Axes, theme: plots.Theme, title: str, below: str) -> None:
    """A title at the left, with a smaller line below it."""
    axes.set_title(f"{title}\n", color=theme.ink, fontsize=11, loc="left")
    place: dict[str, Any] = {"transform": axes.transAxes, "va": "bottom"}
    text = axes.text(0, 1.02, below, color=theme.ink, fontsize=8, **place)
    text.set_in_layout(False)


def curve(axes: Axes, x: Sequence[float], values: Floats, label: str, style: plots.Style) -> None:
    """The median over the seeds (points, S), and its middle half as a band."""
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75), axis=1)
    axes.plot(x, middle, lw=2.2, label=label, **style)
    if values.shape[1] > 1:
        axes.fill_between(x, low, high, color=style["color"], alpha=0.13, lw=0)


def diamonds(
    axes: Axes, theme: plots.Theme, x: Sequence[float], y: Sequence[float], style: plots.Style
) -> None:
    """What the reference has."""
    look = {"mfc": theme.paper, "mec": style["color"], "mew": 1.8, "ms": 7, "clip_on": False}
    (line,) = axes.plot(x, y, "D", zorder=4, **look)
    line.set_in_layout(False)  # unclipped lines upset matplotlib's layout


def legend(drawing: Drawing, axes: Axes, theme: plots.Theme, title: str) -> None:
    """The names of the curves below the panels, and what else there is to see."""
    handles, names = axes.get_legend_handles_labels()
    look: dict[str, Any] = {"frameon": False, "fontsize": 10, "labelcolor": theme.ink}
    box = drawing.legend(
        handles, names, loc="outside lower center", ncols=len(names), title=title, **look
    )
    box.get_title().set(color=theme.ink, fontsize=9)
