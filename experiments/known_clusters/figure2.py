"""Figure 2 of Lyu et al. 2022: how users' cross-entropy is distributed under three models.

The paper has histograms. Here are shares of the users below and above a cross-entropy: the bulk and
the tail, without a choice of bins.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import NullLocator

from corsage.app.report import plots
from corsage.core.arrays import Floats
from corsage.experiments.known_clusters.scores import HIGH, Scores
from corsage.experiments.pictures import entitle, legend

LEAST = 0.005
"""Cross-entropy at the left end of the bulk, which is on a logarithmic scale."""
COLOURS = ("local", "fedavg", "fedrep")


def picture(scores: Mapping[str, Scores], seed: int, theme: plots.Theme) -> Drawing:
    """The bulk at the left, the tail at the right."""
    drawing = Drawing(figsize=(10, 4.4), dpi=plots.DPI, facecolor=theme.paper, layout="constrained")
    FigureCanvasAgg(drawing)
    bulk, tail = drawing.subplots(1, 2)
    look = plots.styles(COLOURS, theme)
    for axes in (bulk, tail):
        plots.dress(axes, theme, "cross-entropy of the user", "share of the users")
        axes.axvline(HIGH, color=theme.faint, lw=1.5, zorder=0)
    for (label, own), name in zip(scores.items(), COLOURS, strict=True):
        below(bulk, own.loss, {**look[name], "label": label})
        above(tail, own.loss, look[name])
    bulk.set_xscale("log")
    bulk.set(xlim=(LEAST, 10), ylim=(0, 1))
    tail.set_yscale("log")
    bulk.xaxis.set_minor_locator(NullLocator())
    tail.yaxis.set_minor_locator(NullLocator())
    tail.set(xlim=(0, 5), ylim=(0.5 / len(next(iter(scores.values())).loss), 1))
    entitle(
        bulk, theme, "Bulk", "share of the users below, on a logarithmic scale of cross-entropy"
    )
    entitle(tail, theme, "Tail", "share of the users above, on a logarithmic scale of shares")
    many = len(next(iter(scores.values())).loss)
    legend(drawing, bulk, theme, f"{many:,} users, seed {seed}; the vertical line: {HIGH:g}")
    return drawing


def below(axes: Axes, loss: Floats, look: plots.Style) -> None:
    """Share of the users with at most so much."""
    axes.plot(np.sort(loss), (np.arange(len(loss)) + 1) / len(loss), lw=2, **look)


def above(axes: Axes, loss: Floats, look: plots.Style) -> None:
    """Share of the users with more than that."""
    axes.plot(np.sort(loss), 1 - np.arange(len(loss)) / len(loss), lw=2, **look)
