"""Ranks of rows over data sets, and tests of many rows: Friedman, Nemenyi, Holm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.05


@dataclass(frozen=True)
class Ranks:
    """Mean ranks of rows, the best being 1.

    Parameters
    ----------
    rows, sets : their names; every row is on every set.
    table : the rank of each row on each set (sets, rows), ties having their mean.
    p_value : of Friedman's test that all rows are alike; None of less than three rows, two sets.
    critical : mean ranks that differ by more differ by Nemenyi's test; None where none is made.
    """

    rows: tuple[str, ...]
    sets: tuple[str, ...]
    table: NDArray[np.float64]
    p_value: float | None
    critical: float | None

    @property
    def means(self) -> dict[str, float]:
        """The mean rank of each row."""
        return dict(zip(self.rows, self.table.mean(0).tolist() if self.rows else (), strict=True))

    def without(self, name: str) -> dict[str, float]:
        """The mean ranks with a set left out."""
        keep = [place for place, one in enumerate(self.sets) if one != name]
        means = self.table[keep].mean(0) if keep else np.full(len(self.rows), np.nan)
        return dict(zip(self.rows, means.tolist(), strict=True))


def ranks(merits: Mapping[str, Mapping[str, float]]) -> Ranks:
    """The ranks of rows by their merits on each set; of rows that are on all sets."""
    from scipy.stats import friedmanchisquare, rankdata

    sets = tuple(merits)
    rows = tuple(
        row for row in dict.fromkeys(r for own in merits.values() for r in own)
        if all(math.isfinite(own.get(row, math.nan)) for own in merits.values())
    )  # fmt: skip
    if not rows:
        return Ranks((), sets, np.zeros((len(sets), 0)), None, None)
    values = np.array([[merits[name][row] for row in rows] for name in sets])
    table = np.array([rankdata(-own) for own in values])
    if len(rows) < 3 or len(sets) < 2:
        return Ranks(rows, sets, table, None, None)
    same = bool((table == table[:, :1]).all())
    p_value = 1.0 if same else float(friedmanchisquare(*values.T).pvalue)
    return Ranks(rows, sets, table, p_value, critical_difference(len(rows), len(sets)))


def critical_difference(rows: int, sets: int) -> float:
    """Nemenyi's: q sqrt(k (k + 1) / 6 N), q the studentised range's quantile over sqrt(2)."""
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(1 - LEVEL, rows, np.inf)) / math.sqrt(2)
    return q * math.sqrt(rows * (rows + 1) / (6 * sets))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: of the i-th smallest of m at least (m - i + 1) times it."""
    order = np.argsort(p_values, kind="stable")
    found, most = [1.0] * len(p_values), 0.0
    for place, at in enumerate(order.tolist()):
        most = max(most, min(1.0, (len(p_values) - place) * p_values[at]))
        found[at] = most
    return found


def over_seeds(differences: Sequence[float]) -> float:
    """The p-value of Student's test that paired differences of seeds are of mean 0."""
    from scipy.stats import t

    values = np.asarray(differences, np.float64)
    if len(values) < 2:
        return 1.0
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    mean = float(values.mean())
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    return float(2 * t.sf(abs(mean) / error, len(values) - 1))
