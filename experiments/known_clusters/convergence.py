"""Convergence of the methods for known clusters: iterations, and round trips to the minimiser.

Lyu et al. 2022, sections 3 and 4, on the objective (2.1) with lambda = gamma = 1 and losses that
are means: a linear regression in the hierarchical model (5.1), and a logistic one on the ellipses
of Armacki et al. 2022. What is shown is |theta - best|^2 as a share of what it was at theta = 0.

The paper proves bounds and has no curves, so the bands are what follows from its theorems:
Algorithm 1 stays in a ball, below Theorem 3.5's bound, and Algorithm 2 goes on to the minimiser.
The mixed model is there after one round where losses are quadratic, after a few of Newton's else.
Round trips of Algorithm 1 are those that its coins make expect, l (1 - l) T.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import LogLocator, NullLocator

from corsage.app.report import plots
from corsage.core.losses import LOGISTIC, SQUARED_LOSS
from corsage.datasets import ellipses, hierarchical
from corsage.experiments.known_clusters.problem import (
    Path,
    Problem,
    async_al2sgd_path,
    async_l2gd_path,
    mixed_model,
)
from corsage.experiments.outcome import Experiment, Figure, Options, Outcome
from corsage.experiments.pictures import chosen_seeds, entitle, legend, panels
from corsage.solvers.known_clusters.coins.flips import count, deviations, expected_communications

SEEDS, ONE_COIN, RIDGE = 3, 0.1, 0.05
LEVEL = 1e-10
NEWTON = {True: 1, False: 8}  # rounds that the mixed model may take to LEVEL, if exact or not
STALLED, RECENT = 1e-6, 0.5  # what Algorithm 1 stays above, on average over the last half
DEVIATIONS = 3.0
AUTO, COIN, FULL, SAMPLE, MIXED = (
    "async-l2gd", "async-l2gd, one coin", "async-al2sgd", "async-al2sgd, one sample", "mixed-model",
)  # fmt: skip
COLOURS = {AUTO: "fedavg", COIN: "fedavg+ft", FULL: "fedrep", SAMPLE: "ditto", MIXED: "local"}
T = {AUTO: 20_000, COIN: 20_000, FULL: 4_000, SAMPLE: 20_000}
FLOOR = 1e-16  # of the picture
NOTES = (
    "Distances: |theta - best|^2 as a share of that at 0. Async-L2GD: mean over the second half of "
    "the iterations, which is what remains of it however long it runs on, and its share of Theorem "
    "3.5's bound. Async-AL2SGD+: after the last iteration.",
    "Round trips: of a cluster's users, the mean over clusters; their deviation from l (1 - l) T "
    "is in standard deviations, the largest over the clusters.",
)
Found = dict[str, list[Path]]


def problems() -> list[Problem]:
    """A quadratic and a logistic problem."""
    own = hierarchical.draw(1, clusters=5, users=10, samples=20, features=10)
    a, y = own.x.reshape(50, 20, 10), own.y.reshape(50, 20)
    linear = Problem.of("linear regression", a, y, SQUARED_LOSS, 0.0, own.cluster, 1.0, 1.0)
    two = ellipses.draw(1)
    a = np.concatenate([two.a, np.ones((*two.l.shape, 1))], axis=2)
    y = (two.l > 0).astype(np.float64)
    return [
        linear,
        Problem.of("logistic regression", a, y, LOGISTIC, RIDGE, two.cluster, 1.0, 1.0),
    ]


def measure(options: Options) -> Outcome:
    """Both problems; a seed is one of coins and samples, the problems stay the same."""
    seeds = chosen_seeds("known-clusters-convergence", options, SEEDS)
    found = [(problem, paths(problem, seeds)) for problem in problems()]
    return Outcome(
        "Known clusters: distance to the exact minimiser",
        unit="distance",
        figures=[row for problem, own in found for row in figures(problem, own)],
        results=[as_json(problem, own) for problem, own in found],
        notes=list(NOTES),
        draw=lambda theme: picture(found, theme),
    )


def paths(problem: Problem, seeds: tuple[int, ...], steps: dict[str, int] = T) -> Found:
    """Every method's paths, one a seed."""
    return {
        AUTO: [async_l2gd_path(problem, seed, steps[AUTO], None) for seed in seeds],
        COIN: [async_l2gd_path(problem, seed, steps[COIN], ONE_COIN) for seed in seeds],
        FULL: [async_al2sgd_path(problem, seed, steps[FULL], sample=False) for seed in seeds],
        SAMPLE: [async_al2sgd_path(problem, seed, steps[SAMPLE], sample=True) for seed in seeds],
        MIXED: [mixed_model(problem)],
    }


def figures(problem: Problem, found: Found) -> list[Figure]:
    """What is claimed, and how long each method takes."""
    case, shown = problem.title, []
    for name in (AUTO, COIN):
        stays = [stalled(path) for path in found[name]]
        bounds = [path.bound(len(path.distance) - 1) for path in found[name] if path.bound]
        shares = [far / bound for far, bound in zip(stays, bounds, strict=True)]
        gaps = tuple(worst_gap(path) for path in found[name])
        shown += [
            Figure(case, f"{name}: distance", tuple(stays), low=STALLED, form=".2g"),
            Figure(case, f"{name}: of the bound", tuple(shares), high=1.0, form=".2g"),
            Figure(case, f"{name}: trips, deviations", gaps, high=DEVIATIONS, form=".2g"),
        ]
    for name in (FULL, SAMPLE):
        ends = tuple(path.distance[-1] for path in found[name])
        shown.append(Figure(case, f"{name}: distance", ends, high=LEVEL, form=".2g"))
    for name in (FULL, SAMPLE, MIXED):
        shown += times(problem, name, found[name])
    return shown


def stalled(path: Path) -> float:
    """The mean distance over the last iterations."""
    return float(np.mean(path.distance[int(RECENT * len(path.distance)) :]))


def worst_gap(path: Path) -> float:
    """The largest deviation of a cluster's round trips from their expectation."""
    assert path.coins is not None
    many, kind = len(path.distance) - 1, "round-trips"
    found, expected = count(path.coins, many), expected_communications(path.coins, many)
    gaps = np.abs(found[kind] - expected[kind]) / deviations(path.coins, many)[kind]
    return float(gaps.max())


def times(problem: Problem, name: str, own: list[Path]) -> list[Figure]:
    """Iterations and round trips to LEVEL, of those runs that get there."""
    firsts = [(path, t) for path in own if (t := path.first(LEVEL)) is not None]
    if not firsts:
        return []
    word = f"to {LEVEL:g}"
    iterations = tuple(float(t) for _, t in firsts)
    if name == MIXED:
        return [
            Figure(problem.title, f"{name}: rounds {word}", iterations, high=NEWTON[problem.exact])
        ]
    spent = tuple(float(path.trips[t]) for path, t in firsts)
    return [
        Figure(problem.title, f"{name}: iterations {word}", iterations, form=".0f"),
        Figure(problem.title, f"{name}: round trips {word}", spent, form=".0f"),
    ]


def as_json(problem: Problem, found: Found) -> dict[str, Any]:
    """Settings, and the distances at some iterations."""
    at = {name: marks(len(own[0].distance)).tolist() for name, own in found.items()}
    return {
        "case": problem.title,
        "L": problem.smoothness,
        "mu": problem.convexity,
        "alpha": problem.hierarchy.alpha.tolist(),
        "iterations": at,
        "distance": {n: [[p.distance[t] for t in at[n]] for p in own] for n, own in found.items()},
        "round_trips": {n: [[p.trips[t] for t in at[n]] for p in own] for n, own in found.items()},
    }


def marks(length: int, many: int = 200) -> Any:
    """Places of a path that are even on a logarithmic scale, the first and the last among them."""
    if length <= many:
        return np.arange(length)
    return np.unique(np.concatenate([[0], np.geomspace(1, length - 1, many)]).astype(np.int64))


def picture(found: list[tuple[Problem, Found]], theme: plots.Theme) -> Drawing:
    """The problems below each other, against iterations and against round trips."""
    drawing, grid = panels(theme, len(found), 2, (9.6, 3.7 * len(found) + 0.5))
    look = plots.styles(COLOURS.values(), theme)
    for row, (problem, own) in zip(grid, found, strict=True):
        for axes, trips in zip(row, (False, True), strict=True):
            for name, runs in own.items():
                line(axes, name, runs, dict(look[COLOURS[name]]), trips)
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(base=10))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set(xlim=(0.9, None), ylim=(FLOOR, 3e2))
            axes.yaxis.set_major_locator(LogLocator(base=100, numticks=20))
            axes.set_xlabel("round trips" if trips else "iterations (mixed-model: rounds)")
        entitle(row[0], theme, problem.title, words(problem))
        row[0].set_ylabel("distance to the minimiser")
    title = "one line a seed; dotted: Theorem 3.5 on the mean of async-l2gd"
    legend(drawing, grid[0][0], theme, title)
    return drawing


def words(problem: Problem) -> str:
    """A problem's size and its constants."""
    n, m, d = problem.a.shape
    sizes = f"n={n}, m={m}, d={d}, {problem.hierarchy.k} clusters"
    return f"{sizes}, L={problem.smoothness:.2g}, mu={problem.convexity:.2g}"


def line(axes: Axes, name: str, runs: list[Path], style: dict[str, Any], trips: bool) -> None:
    """A method's paths, and the theorem's bound."""
    for place, path in enumerate(runs):
        at = marks(len(path.distance))
        x = path.trips[at] if trips else at
        y = np.maximum(np.array(path.distance)[at], FLOOR)
        few: dict[str, Any] = {"marker": "o", "ms": 5} if len(at) < 60 else {}
        label = "_" if place else name
        axes.plot(
            np.maximum(x, 0.9), y, lw=1.4 if len(runs) > 1 else 2, label=label, **style, **few
        )
    if runs[0].bound is not None:
        at = marks(len(runs[0].distance))
        x = runs[0].trips[at] if trips else at
        faint = {"color": style["color"], "ls": (0, (1, 2)), "lw": 1.6}
        axes.plot(np.maximum(x, 0.9), [runs[0].bound(int(t)) for t in at], label="_", **faint)


EXPERIMENT = Experiment(
    what="known clusters: distance to the exact minimiser, by iterations and by round trips",
    takes="40 s; --quick 15 s",
    measure=measure,
)
