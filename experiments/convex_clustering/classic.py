"""Convex clustering of points along lambda, against an independent solver: the classic problem.

min over X of sum_i 1/2 |x_i - a_i|^2 + lam sum w_ij |x_i - x_j|, of which Armacki et al. 2022
generalise the losses. As lam grows, the x_i leave their points, meet, and end at the mean: a tree.

- blobs: three Gaussian groups of 20 points, all pairs with w = 1. That finds groups only if they
  are about four times as far apart as they are wide, as these are.
- moons: two half moons of 50 points, the 10 nearest neighbours with w = exp(-2 |a_i - a_j|^2), as
  in Sun, Toh and Yuan 2021.
- digits: 40 images each of 0, 1 and 6 by their five largest principal components, 10 neighbours.

At six lambdas CVXPY solves the same problem, if it is installed. The clusters are compared with the
groups that the points were drawn from (adjusted Rand index, the best on the path).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Drawing
from scipy.sparse import csr_array
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score

from corsage.app.report import plots
from corsage.core.arrays import Floats, Ints
from corsage.core.seeding import generator
from corsage.experiments.outcome import Experiment, Figure, Options, Outcome
from corsage.experiments.pictures import chosen_seeds, entitle
from corsage.solvers.convex_clustering.exact.sum_of_norms import Edges, Solution, fit, path

NAME, SEEDS, STEPS, CHECKS = "convex-clustering-classic", 3, 60, 6
SAME = 1e-7
"""How far two solvers' minima may be apart, as a share: CVXPY's own tolerance."""
LEAST, SPAN = 1e-3, 300.0
"""Where the search for the largest lambda begins; the largest by the smallest on a path."""
NOTES = [
    "Agreement: the largest difference of the minima from CVXPY's (Clarabel), as a share, at "
    f"{CHECKS} lambdas.",
    "Gap: the largest certified one on the path, as a share. Rand: adjusted index of the best "
    "clustering on the path.",
]


Cost = Callable[[Any, Any], Any]
"""The f_i summed, for CVXPY."""


@dataclass(frozen=True)
class Case:
    """Points a (n, d), their groups, and the graph."""

    a: Floats
    groups: Ints
    edges: Edges


@dataclass(frozen=True)
class Tree:
    """A case and its solutions from the largest lambda to the smallest."""

    case: Case
    solutions: list[Solution]

    @property
    def rand(self) -> list[float]:
        """The adjusted Rand index of each."""
        return [float(adjusted_rand_score(self.case.groups, s.labels)) for s in self.solutions]


def blobs(seed: int) -> Case:
    """Three groups with standard deviation .15, 3.5 apart."""
    rng, groups = generator(seed, NAME, "blobs"), np.repeat(np.arange(3), 20)
    centres = 2 * np.stack([np.cos(angle := 2 * np.pi * np.arange(3) / 3), np.sin(angle)], 1)
    return Case(centres[groups] + 0.15 * rng.normal(size=(60, 2)), groups, Edges.all_pairs(60))


def moons(seed: int) -> Case:
    """Two interlocking half circles, .08 of noise."""
    rng, groups = generator(seed, NAME, "moons"), np.repeat(np.arange(2), 50)
    t = np.tile(np.linspace(0, np.pi, 50), 2)
    sign = 1 - 2 * groups
    a = np.stack([sign * np.cos(t) + groups, sign * np.sin(t) + groups / 2], 1)
    a += 0.08 * rng.normal(size=a.shape)
    return Case(a, groups, Edges.knn(a, 10, decay=2.0))


def digits(seed: int) -> Case:
    """Images of three digits, scaled so that the first component has the deviation 1."""
    rng, (images, classes) = generator(seed, NAME, "digits"), load_digits(return_X_y=True)
    rows = [rng.permutation(np.flatnonzero(classes == c))[:40] for c in (0, 1, 6)]
    a = PCA(5, random_state=0).fit_transform(images[np.concatenate(rows)])
    a = np.asarray(a / a[:, 0].std(), np.float64)
    return Case(a, np.repeat(np.arange(3), 40), Edges.knn(a, 10, decay=2.0))


CASES: dict[str, Callable[[int], Case]] = {"blobs": blobs, "moons": moons, "digits": digits}
RAND = {"blobs": 0.9, "moons": 0.9, "digits": 0.8}


def measure(options: Options) -> Outcome:
    """All cases; quick: blobs."""
    seeds = chosen_seeds(NAME, options, SEEDS)
    names = ["blobs"] if options.quick else list(CASES)
    trees = {name: [tree(CASES[name](seed)) for seed in seeds] for name in names}
    outcome = Outcome("Convex clustering along lambda", unit="share", notes=list(NOTES))
    for name, own in trees.items():
        differences = [compared(each) for each in own]
        if all(d is not None for d in differences):
            worst = tuple(d for d in differences if d is not None)
            outcome.figures.append(Figure(name, "agreement", worst, 0.0, high=SAME, form=".1g"))
        gaps = tuple(max(s.relative_gap for s in each.solutions) for each in own)
        outcome.figures.append(Figure(name, "gap", gaps, 0.0, high=1e-8, form=".1g"))
        rand = tuple(max(each.rand) for each in own)
        outcome.figures.append(Figure(name, "Rand", rand, None, low=RAND[name], form=".2f"))
        outcome.results += [as_json(name, s, each) for s, each in zip(seeds, own, strict=True)]
    if not any(figure.name == "agreement" for figure in outcome.figures):
        outcome.notes.append("CVXPY is not installed: the minima are only certified.")
    outcome.draw = lambda theme: picture({name: own[0] for name, own in trees.items()}, theme)
    return outcome


def tree(case: Case) -> Tree:
    """The path from the least lambda (nearly) at which each piece of the graph is one cluster."""
    pieces, top = case.edges.pieces, LEAST
    while fit(case.a, top, case.edges).labels.max() + 1 > pieces:
        top *= 1.3
    return Tree(case, list(path(case.a, np.geomspace(top, top / SPAN, STEPS), case.edges)))


def compared(found: Tree) -> float | None:
    """The largest difference of the minima from CVXPY's, as a share; None without CVXPY."""
    if find_spec("cvxpy") is None:
        return None
    case = found.case

    def cost(cp: Any, x: Any) -> Any:
        return cp.sum_squares(x - case.a) / 2

    minima = [
        (s.value, by_cvxpy(cost, case.a.shape[1], case.edges, s.lam)[0])
        for s in found.solutions[:: STEPS // CHECKS]
    ]
    return max(abs(ours / theirs - 1) for ours, theirs in minima)


def by_cvxpy(cost: Cost, d: int, edges: Edges, lam: float) -> tuple[float, float]:
    """The minimum by CVXPY with Clarabel, and its CPU seconds.

    `cost` takes the module and the variable X (n, d).
    """
    cp: Any = import_module("cvxpy")
    count = len(edges)
    rows, columns = np.tile(np.arange(count), 2), np.concatenate([edges.i, edges.j])
    incidence = csr_array((np.repeat([1.0, -1.0], count), (rows, columns)), (count, edges.n))
    x = cp.Variable((edges.n, d))
    apart = cp.norm(incidence @ x, 2, axis=1)
    problem = cp.Problem(cp.Minimize(cost(cp, x) + lam * (edges.w @ apart)))
    begin = time.process_time()
    problem.solve(solver=cp.CLARABEL)
    return float(problem.value), time.process_time() - begin


def as_json(name: str, seed: int, found: Tree) -> dict[str, Any]:
    """The path's figures."""
    return {
        "case": name,
        "seed": seed,
        "lambda": [s.lam for s in found.solutions],
        "clusters": [int(s.labels.max()) + 1 for s in found.solutions],
        "rand": found.rand,
        "objective": [s.value for s in found.solutions],
        "newton_steps": [s.iterations for s in found.solutions],
    }


def picture(trees: dict[str, Tree], theme: plots.Theme) -> Drawing:
    """The first seed's trees: points, and the lines on which their x_i move to the mean."""
    drawing = Drawing(
        figsize=(4.4 * len(trees), 4.6), dpi=plots.DPI, facecolor=theme.paper, layout="constrained"
    )
    FigureCanvasAgg(drawing)
    grid = drawing.subplots(1, len(trees), squeeze=False)
    for axes, (name, found) in zip(grid.flat, trees.items(), strict=True):
        plots.dress(axes, theme, "", "")
        draw(axes, found, theme)
        best = int(np.argmax(found.rand))
        chosen = found.solutions[best]
        entitle(
            axes,
            theme,
            name,
            f"rings: the {chosen.labels.max() + 1} models at lambda {chosen.lam:.2g}, "
            f"Rand {found.rand[best]:.2f}",
        )
    return drawing


def draw(axes: Axes, found: Tree, theme: plots.Theme) -> None:
    """One tree in its first two coordinates."""
    case = found.case
    lines = np.stack([case.a, *(s.x for s in found.solutions[::-1])])[..., :2]
    chosen = found.solutions[int(np.argmax(found.rand))]
    for i, group in enumerate(case.groups):
        colour = theme.lines[(0, 1, 4)[group]]
        axes.plot(*lines[:, i].T, color=colour, lw=0.8, alpha=0.5)
        axes.plot(*case.a[i, :2], "o", color=colour, ms=3.5, mew=0)
    axes.plot(*chosen.x[:, :2].T, "o", mfc="none", mec=theme.ink, ms=8, mew=1.2)
    axes.grid(visible=False)
    axes.set_aspect("equal", adjustable="datalim")


EXPERIMENT = Experiment(
    what="convex clustering of points along lambda, against CVXPY: blobs, half moons, digits",
    takes="30 s; --quick 4 s",
    measure=measure,
)
