"""What was fitted of the covariances of users and clusters, as a run holds and prints it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from corsage.core.arrays import Floats
from corsage.solvers.known_clusters.standard import Standard
from corsage.solvers.known_clusters.variances.constraints import NONE as SMALLEST
from corsage.solvers.known_clusters.variances.scoring import Fitted
from corsage.solvers.known_clusters.variances.shapes import DIAGONAL, FULL, ONE, Shape
from corsage.strategies.known_clusters.uncertainty import RECORDS, Likely
from corsage.strategies.rounds.results import Finding

NONE = 1e-12
"""A variance below this share of the level's is none, all of them in standard units."""
WORDS = {ONE: "one variance", DIAGONAL: "a variance a coefficient", FULL: "any covariance"}
SYMBOLS = {"users": "s^2", "clusters": "sb^2"}
BOUNDARY = "0, at the boundary: as far as these data tell, {} do not differ"
NO_VARIANCE = "0, at the boundary: as far as these data tell, it is the same for all"
ENDLESS = (
    "not converged: users differ without end, or a hundred million times as much as the records of "
    "each: next to nothing is known of the variance between records"
)
SHOWN = 8
"""Coefficients of a level that are printed."""


@dataclass
class CovarianceFit:
    """The most likely covariances, given their shapes.

    Parameters
    ----------
    kinds : the shape of each level, from the users up: one, diagonal or full.
    names : clusters, if the users' covariance has a size of its own in each; else none.
    x : the numbers of all levels' roots (scoring.py), in standard units.
    units : from standard units to those of the model.
    sigma2 : sigma^2, between records; 1 where losses are log likelihoods themselves.
    users, clusters : covariances (g, d, d) and (1, d, d), or (0, d, d) if there is one cluster.
    above : of the levels above the clusters, from below, each (d, d).
    loglik : the restricted log likelihood.
    gain : what following its slope would add to twice that: 0 if it has converged.
    shares : of records, users and clusters in the variance of a record; empty if unknown.
    held_out : log likelihood of users that were left out, by the shapes that were tried.
    refused : why others were not judged.
    likely : how sure the numbers are, in the data's units (uncertainty.py).
    intervals : how that was found, or why it was not.
    """

    kinds: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    x: Floats = field(default_factory=lambda: np.zeros(0))
    units: Standard = field(default_factory=lambda: Standard(*np.zeros((3, 0))))
    sigma2: float = 1.0
    users: Floats = field(default_factory=lambda: np.zeros((0, 0, 0)))
    clusters: Floats = field(default_factory=lambda: np.zeros((0, 0, 0)))
    above: list[Floats] = field(default_factory=list)
    loglik: float = 0.0
    gain: float = 0.0
    shares: list[float] = field(default_factory=list)
    held_out: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    likely: dict[str, Likely] = field(default_factory=dict)
    intervals: str = ""

    @classmethod
    def of(
        cls, found: Fitted, units: Standard, names: list[str], shares: list[float]
    ) -> CovarianceFit:
        """A fit to these clusters in standard units, told in those of the model."""
        sigma2, d = found.found.middle.sigma2, len(units.start)
        own = [sigma2 * units.covariances(sized(part)) for part in found.covariances]
        return cls(
            kinds=[shape.kind for shape in found.shapes],
            names=names if found.shapes[0].groups > 1 else [],
            x=np.concatenate(found.x),
            units=units,
            sigma2=sigma2,
            users=own[0],
            clusters=own[1] if len(own) > 1 else np.zeros((0, d, d)),
            above=[one[0] for one in own[2:]],
            loglik=units.density - found.deviance / 2,
            gain=found.gain,
            shares=shares,
        )

    def shapes(self, varies: Floats) -> tuple[Shape, ...]:
        """The shapes once more."""
        which, d = np.flatnonzero(varies), len(varies)
        groups = (max(len(self.names), 1), *(1 for _ in self.kinds[1:]))
        return tuple(
            Shape(kind, which, d, count) for kind, count in zip(self.kinds, groups, strict=True)
        )

    def root(self, cluster: str) -> Floats:
        """L of a cluster's users over sigma (d, d); of a cluster that came later, of the mean."""
        known = cluster in self.names
        one = self.users[self.names.index(cluster)] if known else self.users.mean(0)
        values, vectors = np.linalg.eigh(one / self.sigma2)
        return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))

    @property
    def levels(self) -> dict[str, Floats]:
        """The covariance of each level that there is; of users with several, on average."""
        found = [self.users.mean(0), *self.clusters[:1], *self.above]
        return {level_name(place): one for place, one in enumerate(found)}

    def sizes(self, matrix: Floats) -> Floats:
        """The lengths of coefficients, each a row of a matrix to other units, in standard units."""
        return np.asarray(np.linalg.norm(matrix @ self.units.matrix, axis=1))

    def told(self) -> str:
        """The shapes in words."""
        return described(self.kinds, len(self.names))

    def converged(self, flat: float, exact: bool) -> str:
        """Whether the slope of the likelihood is 0, in words."""
        if self.gain < flat:
            return f"converged: its slope is 0 (to gain: {max(self.gain, 0.0):.0e})"
        if exact:
            return ENDLESS
        return f"not converged: following its slope would gain {self.gain:.1e}; more num-rounds"

    def findings(self, told: Told) -> list[Finding]:
        """Variances in the data's units."""
        how = "restricted maximum likelihood" if told.exact else "Laplace's approximation"
        rows = [("between records (sigma^2)", self._records(told.unit))] if told.exact else []
        for level, covariance in self.levels.items():
            rows += self._level(level, told.matrix @ covariance @ told.matrix.T, told)
        if self.intervals:
            rows.append(("intervals", self.intervals))
        rows.append(("shapes", self.told()))
        if told.exact:
            rows.append(("log likelihood", f"{self.loglik + told.density:.3f}"))
        rows.append(("the likelihood", self.converged(told.flat, told.exact)))
        found = [Finding(f"variances ({how})", rows)]
        return [*found, self._choice()] if len(self.held_out) + len(self.refused) > 1 else found

    def _records(self, unit: float) -> str:
        share = f", {percent(self.shares[0])}" if self.shares else ""
        return f"{unit**2 * self.sigma2:.5g}{self.sure(RECORDS)}{share}"

    def sure(self, *what: str) -> str:
        """How sure a number is, in words."""
        return self.likely.get(": ".join(what), Likely()).text()

    def _level(self, level: str, covariance: Floats, told: Told) -> Iterable[tuple[str, str]]:
        """A row for each coefficient that varies, and the level's share."""
        symbol = f" ({SYMBOLS[level]})" if level in SYMBOLS else ""
        title, share = f"between {level}{symbol}", ""
        if self.shares:
            share = percent(self.shares[1 + list(self.levels).index(level)])
        variances, shown = np.diag(covariance), np.flatnonzero(told.varies)
        if len(shown) == 1:
            number = shown[0]
            value = f"{variances[number]:.5g}" if variances[number] > 0 else BOUNDARY.format(level)
            value += self.sure(level, told.names[number])
            yield title, f"{value}, {share}" if share and variances[number] > 0 else value
        elif variances.max() <= 0.0 and not self.likely:
            yield title, BOUNDARY.format(level)
        else:
            if share:
                yield title, share
            for number in shown[-SHOWN:]:
                name = told.names[number]
                sure = self.sure(level, name), self.sure(level, f"{name}, {told.names[shown[-1]]}")
                text = variance_text(covariance, number, told, self.sizes(told.matrix), *sure)
                yield f"{level}: {name}", text

    def _choice(self) -> Finding:
        """What was tried, the best first."""
        top = max(self.held_out.values())
        ranked = sorted(self.held_out.items(), key=lambda one: -one[1])
        rows = [(name, f"{value:.2f} ({value - top:+.2f})") for name, value in ranked]
        rows += [(name, f"refused: {why}") for name, why in self.refused.items()]
        return Finding("log likelihood of users that were left out, by shapes", rows)


@dataclass(frozen=True)
class Told:
    """How a fit is told.

    Parameters
    ----------
    names, matrix, unit : of the coefficients, to the data's units; and the label's unit.
    density : what these make of the log likelihood.
    varies : 1 for coefficients that differ (d,).
    exact : whether the loss is the squared one.
    flat : the gain that is none.
    """

    names: list[str]
    matrix: Floats
    unit: float
    density: float
    varies: Floats
    exact: bool
    flat: float


def sized(covariance: Floats) -> Floats:
    """A level's covariance over sigma^2; 0 if it is what a search that ended at 0 has left."""
    return covariance if covariance.max(initial=0.0) > SMALLEST**2 else np.zeros_like(covariance)


def level_name(place: int) -> str:
    """What a level's units are called: users, clusters, superclusters, ..."""
    return "users" if place == 0 else "super" * (place - 1) + "clusters"


def percent(share: float) -> str:
    """A share in words."""
    return f"{100 * share:.2f}% of the variance"


def variance_text(
    covariance: Floats, number: int, told: Told, sizes: Floats, sure: str, pair: str
) -> str:
    """A coefficient's variance, its correlation with the last one, and how sure these are."""
    variances, last = np.diag(covariance), int(np.flatnonzero(told.varies)[-1])
    if none(covariance, number, sizes):
        return NO_VARIANCE + sure
    found = f"{variances[number]:.5g}{sure}"
    if number == last or none(covariance, last, sizes) or not covariance[number, last]:
        return found
    value = correlation(covariance, number, last)
    return f"{found}, correlation with {told.names[last]} {value:.2f}{pair}"


def correlation(covariance: Floats, one: int, other: int) -> float:
    """Of two coefficients that vary."""
    sizes = np.sqrt(covariance[one, one]) * np.sqrt(covariance[other, other])
    return float(covariance[one, other] / sizes)


def none(covariance: Floats, number: int, sizes: Floats) -> bool:
    """Whether a coefficient does not vary, whatever its unit is; `sizes`: `CovarianceFit.sizes`."""
    own = np.diag(covariance) / np.square(sizes)
    return bool(own[number] <= NONE * own.sum())


def described(kinds: Sequence[str], groups: int) -> str:
    """Shapes in words."""
    own = [f"{level_name(place)}: {WORDS[kind]}" for place, kind in enumerate(kinds)]
    if groups > 1:
        own[0] += ", of another size in each cluster"
    return "; ".join(own)


def in_words(shapes: Sequence[Shape]) -> str:
    """Shapes of all levels in words."""
    return described([shape.kind for shape in shapes], shapes[0].groups)
