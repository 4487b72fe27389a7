"""Standard errors and intervals of all variances and correlations of a fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.solvers.known_clusters.tree import Tree
from corsage.solvers.known_clusters.variances.profile import Errors, Interval, Intervals
from corsage.solvers.known_clusters.variances.scoring import Fitted
from corsage.solvers.known_clusters.variances.shape_choice import grouped
from corsage.solvers.known_clusters.variances.shapes import FULL, ONE

RECORDS = "records"
LONG_WORK = 700_000
"""Work that intervals may take unless they are asked for: some seconds (`work`)."""
FULL_TIMES = 8
"""Factor of the steps that a full covariance takes."""


@dataclass
class Likely:
    """A standard error, and the ends of an interval of 95%; None: it is not known."""

    se: float | None = None
    low: float | None = None
    high: float | None = None

    def times(self, factor: float) -> Likely:
        """In another unit."""
        found = (None if v is None else factor * v for v in (self.se, self.low, self.high))
        return Likely(*found)


@dataclass(frozen=True)
class Asked:
    """Of which numbers it is asked.

    Parameters
    ----------
    names : of the levels and of the coefficients.
    matrix : a row t (d,) a coefficient: in the data's units it is t'x of the fit's x.
    label : the label's unit.
    varies : which coefficients differ (r,).
    """

    levels: list[str]
    names: list[str]
    matrix: Floats
    label: float
    varies: list[int]


def work(tree: Tree, found: Fitted) -> int:
    """About n d^2 r for each interval."""
    n, d = tree.users.b.shape
    total = 1
    for shape in found.shapes:
        r = len(shape.varies)
        total += {ONE: 1, FULL: FULL_TIMES * (2 * r - 1)}.get(shape.kind, r)
    return int(n * d**2 * len(found.shapes[0].varies) * total)


def uncertain(tree: Tree, found: Fitted, asked: Asked) -> dict[str, Likely]:
    """By `records`, `users: NAME`, and of correlations `users: NAME, LAST NAME`."""
    whole = grouped(tree, found.shapes)
    errors = Errors(whole, found.shapes, found.x, found.found.middle.sigma2)
    intervals = Intervals(whole, found.shapes, found.x)
    noise = likely(errors.noise(), intervals.noise())
    known = {RECORDS: noise.times(asked.label**2)}
    for level, name in enumerate(asked.levels):
        known |= {f"{name}: {k}": v for k, v in of_level(errors, intervals, level, asked)}
    return known


def of_level(
    errors: Errors, intervals: Intervals, level: int, asked: Asked
) -> Iterator[tuple[str, Likely]]:
    """Of each coefficient that varies; of correlations with the last of them."""
    shape, last = intervals.shapes[level], asked.varies[-1]
    common = None
    for k in asked.varies:
        t, size = directed(asked.matrix[k], shape.varies)
        if common is None or shape.kind != ONE:  # one variance: all are it, in their own units
            common = likely(errors.variance(level, t), intervals.variance(level, t))
        yield asked.names[k], common.times(size**2)
    if shape.kind == FULL:
        end, _ = directed(asked.matrix[last], shape.varies)
        for k in asked.varies[:-1]:
            pair = intervals.correlation(level, end, directed(asked.matrix[k], shape.varies)[0])
            yield f"{asked.names[k]}, {asked.names[last]}", likely(None, pair)


def directed(t: Floats, varies: Ints) -> tuple[Floats, float]:
    """t of length 1 where units vary, and its length: a feature's unit decides nothing."""
    size = float(np.linalg.norm(t[varies]))
    return t / size, size


def likely(se: float | None, interval: Interval | None) -> Likely:
    """As plain numbers; ends that are not finite are not known."""
    ends = (None, None) if interval is None else (interval.low, interval.high)
    return Likely(*(float(v) if v is not None and np.isfinite(v) else None for v in (se, *ends)))
