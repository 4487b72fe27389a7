"""The cluster tree of convex clustering: all users' models as lam grows.

Armacki et al. 2022, (3), on the ellipses of section V. Models start as the local ones and come
together; where two meet, they stay one. Colours are the true clusters, which nothing here knows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Drawing
from sklearn.metrics import adjusted_rand_score

from corsage.app.report import plots
from corsage.core.arrays import Floats, Ints
from corsage.experiments.convex_clustering.problem import OPTIMA, problem
from corsage.experiments.outcome import Experiment, Figure, Options, Outcome
from corsage.experiments.pictures import chosen_seeds, legend
from corsage.solvers.convex_clustering.exact.edges import Edges
from corsage.solvers.convex_clustering.exact.partition import proved
from corsage.solvers.convex_clustering.exact.sum_of_norms import path
from corsage.solvers.convex_clustering.recovery import window

ENDS, POINTS, QUICK = (2e-3, 0.25), 161, 25
KNOWN = {0.001: 60, 0.01: 60, 0.04: 43, 0.0913593: 3, 0.1: 2}
WINDOW_AT = 0.0913593
NOTE = (
    "Models are shown along their two main directions over all of the path. The window in which "
    "there are exactly the three true clusters is narrow, and most draws have none."
)


def measure(options: Options) -> Outcome:
    """The path from one model down to nearly local ones."""
    (seed,) = chosen_seeds("convex-clustering-path", options, 1) if options.seeds else (1,)
    losses, true = problem(seed)
    lams = np.geomspace(*ENDS, QUICK if options.quick else POINTS)
    lams = np.union1d(lams, list(KNOWN))[::-1]
    solved = [proved(losses, each) for each in path(losses, lams.tolist())]
    models = np.stack([each.x for each in solved])
    labels = [each.labels for each in solved]
    counts = np.array([int(own.max()) + 1 for own in labels])
    outcome = Outcome("Convex clustering: the cluster tree (Armacki et al. 2022)", "")
    for lam, known in KNOWN.items():
        at = int(np.argmin(np.abs(lams - lam)))
        count, best = (float(counts[at]),), (solved[at].value,)
        if seed == 1:
            outcome.figures += [
                Figure.around(f"lam={lam:g}", "distinct models", count, known, 0),
                Figure(f"lam={lam:g}", "objective", best, OPTIMA[lam], OPTIMA[lam] - 1e-6,
                       OPTIMA[lam] + 1e-6, form=".6f"),
            ]  # fmt: skip
        else:
            outcome.figures.append(Figure(f"lam={lam:g}", "distinct models", count))
    gaps = float(max(each.relative_gap for each in solved))
    outcome.figures.append(
        Figure("all lam", "largest relative gap", (gaps,), high=1e-8, form=".1g")
    )
    sure = float(np.mean([each.partition_certified is True for each in solved]))
    outcome.figures.append(Figure("all lam", "clusters proved, share", (sure,), low=1.0))
    outcome.results = [
        {"lam": lam, "clusters": int(count), "agreement": float(adjusted_rand_score(own, true))}
        for lam, count, own in zip(lams.tolist(), counts, labels, strict=True)
    ]
    outcome.notes = [NOTE]
    found = window(losses, true, WINDOW_AT, Edges.all_pairs(losses.n))
    outcome.draw = lambda theme: picture(lams, models, counts, true, found, theme)
    return outcome


def main_directions(models: Floats) -> Floats:
    """Coordinates (lams, N, 2) along the two directions in which all models differ the most."""
    flat = models.reshape(-1, models.shape[-1])
    centred = flat - flat.mean(0)
    directions = np.linalg.svd(centred, full_matrices=False)[2][:2]
    return np.asarray((centred @ directions.T).reshape(*models.shape[:2], 2))


def picture(
    lams: Floats,
    models: Floats,
    counts: Ints,
    true: Ints,
    found: tuple[float, float] | None,
    theme: plots.Theme,
) -> Drawing:
    """Two coordinates of the models, and how many different ones there are."""
    shown = lams >= ENDS[0]
    places = main_directions(models[shown])
    drawing = Drawing(figsize=(14, 4.8), dpi=plots.DPI, facecolor=theme.paper, layout="constrained")
    FigureCanvasAgg(drawing)
    grid = drawing.subplots(1, 3)
    for number, axes in enumerate(grid):
        axes.set_xscale("log")
        plots.dress(axes, theme, "lam", "")
        axes.set_xlim(*ENDS)
        if found is not None:
            axes.axvspan(*found, color=theme.lines[4], alpha=0.35, lw=0)
        if number < 2:
            for user, cluster in enumerate(true.tolist()):
                first = user == int(np.flatnonzero(true == cluster)[0])
                style: dict[str, Any] = {"color": theme.lines[COLOURS[cluster]], "lw": 0.9}
                name = f"cluster {cluster + 1}" if first else None
                axes.plot(lams[shown], places[:, user, number], alpha=0.8, label=name, **style)
    grid[2].step(lams[shown], counts[shown], color=theme.ink, lw=2, where="mid")
    grid[2].set_yscale("log")
    grid[2].set_yticks([1, 2, 3, 10, 60], ["1", "2", "3", "10", "60"])
    grid[2].minorticks_off()
    for axes, words in zip(grid, TITLES, strict=True):
        axes.set_title(words, color=theme.ink, fontsize=11, loc="left")
    legend(drawing, grid[0], theme, "shaded: lam with exactly the three true clusters")
    return drawing


COLOURS = (0, 1, 4)
TITLES = ("models, first direction", "models, second direction", "distinct models")

EXPERIMENT = Experiment(
    what="the cluster tree: all users' models along lam, and how many different ones there are",
    takes="10 s; --quick 4 s",
    measure=measure,
)
