"""Small sum-of-norms problems with odd graphs and units: CPU seconds until each has ended.

Four to sixty users with up to 116 numbers, four losses; one user's inputs, one column or all
labels a thousand times as large; graphs in pieces, chains, stars, weights that differ by a million.
All must end soon, with a certificate or an honest line that there is none: a user whose labels are
all of one class has a best model for pulls to one side only, which rounding may miss.

    python -m corsage.benchmarks odd-problems
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import threadpoolctl
import torch

from corsage.benchmarks.measure import Measure
from corsage.benchmarks.turns import one_thread
from corsage.core.arrays import Ints
from corsage.core.losses import scalar_loss
from corsage.core.seeding import generator
from corsage.solvers.convex_clustering.exact.edges import Edges
from corsage.solvers.convex_clustering.exact.sum_of_norms import Solution, fit
from corsage.solvers.losses.linear_losses import LinearLosses

ODD_ONES, ENDS_WITHIN = 73, 2.0
"""Problems, and the CPU seconds that none may take longer."""
FOUR_LOSSES = ("squared", "squared-hinge", "logistic", "huber")
OTHER_UNIT = 1e3
"""Units that some numbers are in."""


@dataclass(frozen=True)
class Odd:
    """A problem, and what is odd about it."""

    name: str
    losses: LinearLosses
    edges: Edges
    lam: float


def ends(rng: np.random.Generator, n: int) -> dict[str, tuple[Ints, Ints]]:
    """The pairs of each kind of graph."""
    i, j = np.triu_indices(n, 1)
    some, same, later = rng.random(len(i)) < 0.3, i % 2 == j % 2, np.arange(1, n)
    return {
        "all pairs": (i, j),
        "chain": (later - 1, later),
        "star": (0 * later, later),
        "some pairs": (i[some], j[some]),
        "two pieces": (i[same], j[same]),
    }


def drawn(number: int) -> Odd:
    """The problem of that number."""
    rng = generator(0, "benchmark", "odd", number)
    n, d = int(rng.integers(4, 61)), int(np.exp(rng.uniform(0, np.log(116))))
    d, m, loss = max(d, 1), int(rng.integers(2, 31)), FOUR_LOSSES[number % len(FOUR_LOSSES)]
    a, truth = rng.normal(size=(n, m, d)), rng.normal(size=d + 1)
    unit = ("plain", "a user's inputs", "a column", "labels")[int(rng.integers(4))]
    if unit == "a user's inputs":
        a[0] *= OTHER_UNIT
    if unit == "a column":
        a[:, :, 0] *= OTHER_UNIT
    u = a @ truth[:-1] + truth[-1] + rng.normal(size=(n, m))
    kind = scalar_loss(loss)
    assert kind is not None
    y = u > np.median(u) if kind.classes else u * (OTHER_UNIT if unit == "labels" else 1.0)
    x, labels = torch.from_numpy(a.reshape(n * m, d)), torch.from_numpy(y.ravel())
    own = LinearLosses(x, labels, [m] * n, loss=kind, scale="mean", ridge=1e-3)
    kinds = ends(rng, n)
    shape = list(kinds)[int(rng.integers(len(kinds)))]
    i, j = kinds[shape]
    w = np.exp(rng.uniform(-7, 7, len(i))) if rng.random() < 0.3 else np.ones(len(i))
    edges = Edges(i, j, w, n)
    slope = own.gradient(torch.zeros(n, own.d, dtype=torch.float64)).norm(dim=1).median()
    lam = float(slope) / max(2 * w.sum() / n, 1e-9) * float(np.exp(rng.uniform(-5, 2)))
    odd = "" if w.std() == 0 else ", odd weights"
    return Odd(f"{number}: {loss}, n={n}, d={own.d}, {shape}{odd}, {unit}", own, edges, lam)


def solved(odd: Odd) -> tuple[Solution, float]:
    """The solution, and its CPU seconds."""
    begin = time.process_time()
    found = fit(odd.losses, odd.lam, odd.edges)
    return found, time.process_time() - begin


def run() -> Iterator[Measure]:
    """The slowest of all, and how many are certified."""
    with one_thread(), threadpoolctl.threadpool_limits(1):
        seconds, sure = dict[str, float](), 0
        for number in range(ODD_ONES):
            odd = drawn(number)
            found, seconds[odd.name] = solved(odd)
            sure += found.certified
        slow = max(seconds, key=lambda name: seconds[name])
        ended = sum(each <= ENDS_WITHIN for each in seconds.values())
        beside = (
            f"{ended} of {ODD_ONES} within {ENDS_WITHIN:g} s; {sure} certified; slowest: {slow}"
        )
        yield Measure("the slowest", seconds[slow], ENDS_WITHIN, "CPU s", beside)
