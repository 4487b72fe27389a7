"""Standard errors and intervals of all variances and correlations of a fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

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


INTERVAL_ROUNDING = 1e-6
"""A share of an interval that is rounding."""


@dataclass
class Likely:
    """A standard error, and the ends of an interval of 95%; None: it is not known."""

    se: float | None = None
    low: float | None = None
    high: float | None = None

    def has(self, value: float) -> bool:
        """True if a value is within the interval, or none is known."""
        if self.low is None or self.high is None:
            return True
        slack = INTERVAL_ROUNDING * self.high
        return self.low - slack <= value <= self.high + slack

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
    pairs : whether of the correlations of all pairs, or of each coefficient with the last alone.
    """

    levels: list[str]
    names: list[str]
    matrix: Floats
    label: float
    pairs: bool


def work(tree: Tree, found: Fitted, pairs: bool) -> int:
    """About n d^2 r for each interval; with those of the correlations of all pairs, or one each."""
    n, d = tree.users.b.shape
    total, most = 1, 0
    for shape in found.shapes:
        r = len(shape.varies)
        every = r * (r + 1) // 2 if pairs else 2 * r - 1
        total += {ONE: 1, FULL: FULL_TIMES * every}.get(shape.kind, r)
        most = max(most, r)
    return int(n * d**2 * most * total)


def uncertain(tree: Tree, found: Fitted, asked: Asked) -> tuple[dict[str, Likely], bool]:
    """By `records`, `users: NAME`, and of correlations `users: NAME, LATER NAME`.

    By the profile of the likelihood; True: of the restricted one, as some estimate, which is that
    one's, is not within the interval of the other. It happens with few rows for the coefficients.
    """
    whole, wanted = grouped(tree, found.shapes), estimates(found, asked)
    for restricted in (False, True):
        known = profiled(whole, found, asked, restricted)
        if all(own.has(wanted[name]) for name, own in known.items() if name in wanted):
            break
    return known, restricted


def estimates(found: Fitted, asked: Asked) -> dict[str, float]:
    """The variances."""
    sigma2 = found.found.middle.sigma2
    known = {RECORDS: sigma2 * asked.label**2}
    for name, own in zip(asked.levels, found.covariances, strict=False):
        values = np.diag(asked.matrix @ own.mean(0) @ asked.matrix.T) * sigma2
        known |= {f"{name}: {k}": float(v) for k, v in zip(asked.names, values, strict=True)}
    return known


def profiled(tree: Tree, found: Fitted, asked: Asked, restricted: bool) -> dict[str, Likely]:
    """Errors, and intervals by one of the two likelihoods."""
    errors = Errors(tree, found.shapes, found.x, found.found.middle.sigma2)
    intervals = Intervals(tree, found.shapes, found.x, restricted)
    noise = likely(errors.noise(), intervals.noise())
    known = {RECORDS: noise.times(asked.label**2)}
    for level, name in enumerate(asked.levels):
        known |= {f"{name}: {k}": v for k, v in of_level(errors, intervals, level, asked)}
    return known


def of_level(
    errors: Errors, intervals: Intervals, level: int, asked: Asked
) -> Iterator[tuple[str, Likely]]:
    """Of each coefficient that varies; of correlations of all pairs, or of each with the last."""
    shape, names = intervals.shapes[level], asked.names
    which, common = shape.varies.tolist(), None
    for k in which:
        t, size = directed(asked.matrix[k], shape.varies)
        if common is None or shape.kind != ONE:  # one variance: all are it, in their own units
            common = likely(errors.variance(level, t), intervals.variance(level, t))
        yield names[k], common.times(size**2)
    for one, other in combinations(which, 2) if shape.kind == FULL else []:
        if asked.pairs or other == which[-1]:
            ends = [directed(asked.matrix[k], shape.varies)[0] for k in (other, one)]
            pair = intervals.correlation(level, *ends)
            yield f"{names[one]}, {names[other]}", likely(None, pair)


def directed(t: Floats, varies: Ints) -> tuple[Floats, float]:
    """t of length 1 where units vary, and its length: a feature's unit decides nothing."""
    size = float(np.linalg.norm(t[varies]))
    return t / size, size


def likely(se: float | None, interval: Interval | None) -> Likely:
    """As plain numbers; ends that are not finite are not known."""
    ends = (None, None) if interval is None else (interval.low, interval.high)
    return Likely(*(float(v) if v is not None and np.isfinite(v) else None for v in (se, *ends)))
