"""The covariances of users and clusters that were fitted, as a run prints them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from corsage.core.arrays import Floats
from corsage.solvers.known_clusters.variances.covariance_fit import (
    CovarianceFit,
    correlation,
    level_name,
    none,
)
from corsage.solvers.known_clusters.variances.shapes import DIAGONAL, FULL, ONE, Shape
from corsage.solvers.known_clusters.variances.uncertainty import RECORDS, Likely
from corsage.strategies.known_clusters.estimation import HELD, ZERO_NOISE
from corsage.strategies.rounds.results import Finding

SHAPE_WORDS = {ONE: "one variance", DIAGONAL: "a variance a coefficient", FULL: "any covariance"}
SYMBOLS = {"users": "s^2", "clusters": "sb^2"}
AT_BOUNDARY = "0, at the boundary: as far as these data tell, {} do not differ"
NO_VARIANCE = "0, at the boundary: as far as these data tell, it is the same for all"
QUASI_LIKELIHOOD = "penalised quasi-likelihood"
NOT_ENDING = (
    "not converged: users differ without end, or a hundred million times as much as the records of "
    "each: next to nothing is known of the variance between records"
)
WIDE_ROOT = 100.0
"""Users that differ ten thousand times as much as records."""
TOO_LITTLE = "these data tell too little of so many variances; mixed-variances=one has fewest"
NO_CORRELATION = 1e-9
"""Less is rounding: these coefficients are independent in the model."""
VARIANCES_SHOWN = 8
"""Coefficients of a level that are printed."""
PROFILE = "95%, by the profile of the likelihood (not the restricted one); as lme4's confint"
RESTRICTED_PROFILE = (
    "95%, by the profile of the restricted likelihood: an estimate is outside that of the other"
)
SOME_PAIRS = "of correlations with the last coefficient alone: mixed-intervals=always asks for all"
LEFT_OUT = "none: they would take long with so many users; mixed-intervals=always asks for them"
APPROXIMATE = (
    "none: the likelihood is approximated at one set of variances, and biased towards 0 with few "
    "rows a user; its profile would look surer than it is"
)
SUMS_OF_SEVERAL = "none: the server has sums over several users, not those of each"
NOT_CONVERGED = "none: the likelihood has not converged"
NOT_ASKED = "none: mixed-intervals=never"


@dataclass(frozen=True)
class CovarianceTable:
    """A fit as rows of text.

    Parameters
    ----------
    fit : it.
    names, matrix, unit : of the coefficients, to the data's units; and the label's unit.
    density : what these make of the log likelihood.
    varies : 1 for coefficients that differ (d,).
    exact : whether the loss is the squared one.
    endless : why the likelihood has no top; empty: nothing is known against it.
    """

    fit: CovarianceFit
    names: list[str]
    matrix: Floats
    unit: float
    density: float
    varies: Floats
    exact: bool
    endless: str = ""

    def shapes(self) -> str:
        """The shapes in words."""
        return described(self.fit.kinds, len(self.fit.names))

    def converged(self) -> str:
        """The end of the search in words: the slope of the likelihood, 0 or not."""
        if why := self.fit.fault or self.endless:
            return why
        if self.fit.converged:
            return f"converged: its slope is 0 (to gain: {max(self.fit.gain, 0.0):.0e})"
        if self.exact and np.abs(self.fit.x).max(initial=0.0) > WIDE_ROOT:
            return NOT_ENDING
        more = TOO_LITTLE if self.exact else "more num-rounds"
        return f"not converged: following its slope would gain {self.fit.gain:.1e}; {more}"

    def findings(self) -> list[Finding]:
        """Variances in the data's units."""
        how = "restricted maximum likelihood" if self.exact else QUASI_LIKELIHOOD
        how = self.fit.generalised.how or how
        rows = [("between records (sigma^2)", self._records())] if self.exact else []
        for level, covariance in self.fit.levels.items():
            rows += self._level(level, self.matrix @ covariance @ self.matrix.T)
        if self.fit.intervals:
            rows.append(("intervals", self.fit.intervals))
        rows.append(("shapes", self.shapes()))
        if self.fit.generalised.bound:
            rows.append(("the family's shape", "without bound, held there: as loss=poisson"))
        elif self.fit.generalised.shape:
            rows.append(("the family's shape", f"{np.exp(self.fit.generalised.shape):.5g}"))
        if aic := self.fit.generalised.aic:
            rows.append(("log likelihood", f"{self.fit.loglik:.3f} (AIC {aic:.3f})"))
        if self.exact:
            rows.append(("log likelihood", f"{self.fit.loglik + self.density:.3f}"))
        rows.append(("the likelihood", self.converged()))
        found = [Finding(f"variances ({how})", rows)]
        if len(tried := self.fit.generalised.tried) > 1:
            ranked = sorted((aic, kind) for kind, aic in tried.items())
            told = [
                (SHAPE_WORDS[kind], f"{aic:.2f} (+{aic - ranked[0][0]:.2f})")
                for aic, kind in ranked
            ]
            found.append(Finding("Akaike's criterion, by shapes of covariances", told))
        return (
            [*found, self._choice()]
            if len(self.fit.held_out) + len(self.fit.refused) > 1
            else found
        )

    def _records(self) -> str:
        if self.fit.fault:
            return ZERO_NOISE
        share = f", {percent(self.fit.shares[0])}" if self.fit.shares else ""
        return f"{self.unit**2 * self.fit.sigma2:.5g}{self.sure(RECORDS)}{share}"

    def sure(self, *what: str) -> str:
        """A number's error and interval, in words."""
        return in_brackets(self.fit.likely.get(": ".join(what), Likely()))

    def _level(self, level: str, covariance: Floats) -> Iterable[tuple[str, str]]:
        """A row for each coefficient that varies, and the level's share."""
        symbol = f" ({SYMBOLS[level]})" if level in SYMBOLS else ""
        title, share = f"between {level}{symbol}", ""
        if self.fit.shares:
            share = percent(self.fit.shares[1 + list(self.fit.levels).index(level)])
        variances, shown = np.diag(covariance), np.flatnonzero(self.varies)
        if len(shown) == 1:
            number = shown[0]
            text = self._single(level, variances[number], self.names[number])
            yield title, f"{text}, {share}" if share and variances[number] > 0 else text
        elif variances.max() <= 0.0 and not self.fit.likely and not self.fit.held:
            yield title, AT_BOUNDARY.format(level)
        else:
            if share:
                yield title, share
            for number in shown[-VARIANCES_SHOWN:]:
                yield f"{level}: {self.names[number]}", self._variance(level, covariance, number)

    def _single(self, level: str, variance: float, name: str) -> str:
        """The variance of a level where one coefficient differs."""
        if why := self.fit.held.get(f"{level}: {name}"):
            return HELD.format(why)
        value = f"{variance:.5g}" if variance > 0 else AT_BOUNDARY.format(level)
        return value + self.sure(level, name)

    def _choice(self) -> Finding:
        """The shapes that were tried, the best first."""
        top = max(self.fit.held_out.values())
        ranked = sorted(self.fit.held_out.items(), key=lambda one: -one[1])
        rows = [(name, f"{value:.2f} ({value - top:+.2f})") for name, value in ranked]
        rows += [(name, f"refused: {why}") for name, why in self.fit.refused.items()]
        return Finding("log likelihood of users that were left out, by shapes", rows)

    def _variance(self, level: str, covariance: Floats, number: int) -> str:
        """A coefficient's variance, its correlations with later ones, and how sure these are."""
        name = self.names[number]
        if why := self.fit.held.get(f"{level}: {name}"):
            return HELD.format(why)
        if self._none(covariance, number):
            return NO_VARIANCE + self.sure(level, name)
        found = [f"{covariance[number, number]:.5g}{self.sure(level, name)}"]
        for other in np.flatnonzero(self.varies).tolist():
            if other > number and not self._none(covariance, other):
                value = correlation(covariance, number, other)
                if abs(value) < NO_CORRELATION:
                    continue
                sure = self.sure(level, f"{name}, {self.names[other]}")
                found.append(f"correlation with {self.names[other]} {value:.2f}{sure}")
        return ", ".join(found)

    def _none(self, covariance: Floats, number: int) -> bool:
        return none(covariance, number, self.fit.sizes(self.matrix))


def percent(share: float) -> str:
    """A share in words."""
    return f"{100 * share:.2f}% of the variance"


def described(kinds: Sequence[str], groups: int) -> str:
    """Shapes in words."""
    own = [f"{level_name(place)}: {SHAPE_WORDS[kind]}" for place, kind in enumerate(kinds)]
    if groups > 1:
        own[0] += ", of another size in each cluster"
    return "; ".join(own)


def in_words(shapes: Sequence[Shape]) -> str:
    """Shapes of all levels in words."""
    return described([shape.kind for shape in shapes], shapes[0].groups)


def in_brackets(sure: Likely) -> str:
    """An error and an interval, with a space before; nothing if nothing is known."""
    parts = [] if sure.se is None else [f"se {sure.se:.4g}"]
    if sure.low is not None and sure.high is not None:
        parts.append(f"95% {sure.low:.4g} to {sure.high:.4g}")
    return f" ({', '.join(parts)})" if parts else ""
