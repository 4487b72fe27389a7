"""Mixed models beside each other: likelihood-ratio tests of nested ones, AIC and BIC.

Restricted likelihoods are of contrasts that the fixed coefficients leave, so they can be compared
between models with the same ones. A variance that the smaller model has at 0 is at the edge of what
it may be, where half of the ratio's distribution has a degree of freedom less (Stram and Lee 1994);
with several such variances the p-value of chi2 is too large, and it is said to be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from corsage.app.studies.over_seeds import Done
from corsage.solvers.known_clusters.variances.shapes import FULL, ONE

SAME_RATIO = 1e-6
"""A likelihood ratio that is rounding of a search: the variance more is 0."""
NOT_NESTED = "none is a case of the other"
SAME_SQUARES = 1e-6
"""Sums of squares of labels that differ by a smaller share are of the same labels."""


@dataclass(frozen=True)
class Fit:
    """A mixed model that was fitted by restricted likelihood, as a run's result has it.

    Parameters
    ----------
    name : of the run's row.
    stored : `likelihood` of its estimates.
    """

    name: str
    stored: Mapping[str, Any]

    @property
    def loglik(self) -> float:
        """The restricted log likelihood."""
        return float(self.stored["loglik"])

    @property
    def numbers(self) -> int:
        """Numbers of the variances and of the fixed coefficients."""
        return int(self.stored["numbers"]) + len(self.stored["fixed"])

    @property
    def aic(self) -> float:
        """Akaike's criterion."""
        return 2 * self.numbers - 2 * self.loglik

    @property
    def bic(self) -> float:
        """Schwarz's criterion, over records."""
        return float(np.log(self.stored["records"])) * self.numbers - 2 * self.loglik

    def within(self, other: Fit) -> bool:
        """True if it is a case of the other model: with some of its variances or correlations 0."""
        mine, theirs = self.stored["levels"], other.stored["levels"]
        apart = self.stored["apart"] < 2 or self.stored["apart"] == other.stored["apart"]
        nested = all(name in theirs and part_of(own, theirs[name]) for name, own in mine.items())
        return apart and nested and self.numbers < other.numbers

    def edges(self, other: Fit) -> int:
        """The variances of the other model that are 0 in this one."""
        found, known = 0, self.stored["levels"]
        for name, level in other.stored["levels"].items():
            more = set(level["varying"]) - set(known.get(name, {}).get("varying", []))
            found += min(len(more), 1) if level["shape"] == ONE else len(more)
        return found

    def unlike(self, other: Fit) -> str:
        """Why the restricted likelihoods are not to be compared; empty: they are."""
        mine, theirs = self.stored, other.stored
        gap = abs(mine["squares"] - theirs["squares"])
        if mine["records"] != theirs["records"]:
            return f"other data ({mine['records']:,} and {theirs['records']:,} records)"
        if gap > SAME_SQUARES * theirs["squares"]:
            return "other labels"
        if mine["fixed"] != theirs["fixed"]:
            return "other fixed coefficients, and the likelihoods are restricted ones"
        return ""


def part_of(own: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """True if one level's covariance is a case of another's.

    Without correlations coefficients are those around the means of columns, or where these are 0:
    they are no case of each other, but for intercepts alone.
    """
    mine, theirs = set(own["varying"]), set(other["varying"])
    if other["shape"] == FULL or not mine <= theirs:
        return mine <= theirs
    if own["at_zero"] != other["at_zero"] and mine != {"intercept"}:
        return False
    if other["shape"] == ONE:
        return own["shape"] == ONE and mine == theirs
    return own["shape"] != FULL or len(mine) == 1


@dataclass(frozen=True)
class Ratio:
    """The likelihood-ratio test of a model within another."""

    small: Fit
    large: Fit

    @property
    def chi2(self) -> float:
        """-2 log of the ratio; a search's rounding makes no ratio of models above 1."""
        return max(2 * (self.large.loglik - self.small.loglik), 0.0)

    @property
    def df(self) -> int:
        """Numbers more."""
        return self.large.numbers - self.small.numbers

    @property
    def p(self) -> float:
        """By chi2; of one variance more by half of it, and half with a degree of freedom less."""
        from scipy.stats import chi2

        whole = float(chi2.sf(self.chi2, self.df))
        if self.small.edges(self.large) != 1:
            return whole
        less = (
            float(chi2.sf(self.chi2, self.df - 1))
            if self.df > 1
            else float(self.chi2 <= SAME_RATIO)
        )
        return (whole + less) / 2

    def json(self) -> dict[str, Any]:
        """As the comparison's file has it."""
        return {
            "small": self.small.name, "large": self.large.name, "chi2": self.chi2, "df": self.df,
            "p": self.p, "aic": [self.small.aic, self.large.aic],
            "bic": [self.small.bic, self.large.bic],
        }  # fmt: skip

    @property
    def text(self) -> str:
        """In a line."""
        edges = self.small.edges(self.large)
        half = f", half of it with {self.df - 1}: one variance more" if edges == 1 else ""
        safe = f"; with {edges} variances more it is rather smaller" if edges > 1 else ""
        return (
            f"Likelihood ratio of {self.small.name} in {self.large.name}: chi2 {self.chi2:.2f}, "
            f"df {self.df}{half}, p {self.p:.2g}{safe} (restricted likelihoods, the same fixed "
            f"coefficients). {criteria(self.small, self.large)}"
        )


def criteria(small: Fit, large: Fit) -> str:
    """AIC and BIC of both, and whose search has not ended."""
    open_ = [fit.name for fit in (small, large) if not fit.stored["converged"]]
    return (
        f"AIC {small.aic:.1f} and {large.aic:.1f}, BIC {small.bic:.1f} and {large.bic:.1f}."
        + "".join(f" {name} has not converged." for name in open_)
    )


def ratios(runs: Sequence[Done]) -> list[Ratio]:
    """The tests of each mixed model within the one with more numbers that comes next."""
    return [Ratio(*pair) for pair in pairs(runs) if not refusal(*pair)]


def lines(runs: Sequence[Done]) -> list[str]:
    """A line on each two mixed models in turn: the test, or why there is none."""
    found = []
    for small, large in pairs(runs):
        why = refusal(small, large)
        both = f"{small.name} and {large.name}"
        other = "" if small.unlike(large) else f" {criteria(small, large)}"
        found.append(
            f"No likelihood ratio of {both}: {why}.{other}" if why else Ratio(small, large).text
        )
    return found


def refusal(small: Fit, large: Fit) -> str:
    """Why there is no test; empty: there is one."""
    return small.unlike(large) or ("" if small.within(large) else NOT_NESTED)


def pairs(runs: Sequence[Done]) -> Iterable[tuple[Fit, Fit]]:
    """Mixed models in turn, from the one with the fewest numbers; none of several seeds."""
    found = fits(runs) if len({run.seed for run in runs}) == 1 else []
    return pairwise(found)


def fits(runs: Sequence[Done]) -> list[Fit]:
    """The mixed models of some runs, from the one with the fewest numbers."""
    rows = [(run, result) for run in runs for result in run.results]
    of = [(run, row, (row.get("estimates") or {}).get("likelihood")) for run, row in rows]
    several = len({row["strategy"] for _, row, stored in of if stored}) > 1
    found = []
    for run, row, stored in of:
        words = [f"{key}={value}" for key, value in run.settings.items()]
        name = " ".join([row["strategy"]] * (several or not words) + words)
        found += [Fit(name, stored)] if stored else []
    return sorted(found, key=lambda fit: fit.numbers)
