"""A linear model's results as a statistician reads them: coefficients, variances, users."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from corsage.core.arrays import Floats
from corsage.strategies.rounds.results import Finding

if TYPE_CHECKING:
    from corsage.strategies.known_clusters.mixed_state import MixedModelState

MOST_SPREAD_NUMBERS = 200_000
"""Numbers of all centres' covariances that a result keeps."""

NORMAL = 1.959963984540054
"""Half the width of a 95% interval, in standard errors."""
COEFFICIENTS_SHOWN = 20
"""Coefficients that are printed; files have all."""
FEW_SHOWN = 6
"""Clusters that are printed, and coefficients of each."""
OVERDISPERSED = 1.5
"""Rows scatter more than their family says if Pearson's chi^2 is so many times what is expected."""
MOST_DIGITS = 15
"""Digits of a double that are no rounding."""
ENDS = 3
"""Users that are printed from either end."""


@dataclass(frozen=True)
class Coefficient:
    """One coefficient of the model of all, with its standard error if the data tell one.

    `untold`: why they do not tell the coefficient.
    """

    name: str
    estimate: float
    se: float | None = None
    untold: str = ""

    @property
    def z(self) -> float | None:
        """The estimate in standard errors."""
        return self.estimate / self.se if self.se else None

    @property
    def p(self) -> float | None:
        """The probability of an estimate as large of a coefficient that is 0 (normal)."""
        return None if self.z is None else math.erfc(abs(self.z) / math.sqrt(2))

    def json(self) -> dict[str, Any]:
        """With an interval of 95%."""
        reach = None if self.se is None else NORMAL * self.se
        low, high = (
            (None, None) if reach is None else (self.estimate - reach, self.estimate + reach)
        )
        return {**asdict(self), "low": low, "high": high, "z": self.z, "p": self.p}

    def text(self) -> str:
        """One line of a table."""
        if self.se is None or self.z is None or self.p is None:
            return number_text(self.estimate, 0.0, 5) + (f" ({self.untold})" if self.untold else "")
        chance = "p < .001" if self.p < 0.001 else f"p = {self.p:.3f}".replace("0.", ".", 1)
        z = f"{self.z:.2f}" if abs(self.z) < 1e6 else f"{self.z:.3g}"
        return f"{number_text(self.estimate, self.se, 5)} (se {self.se:.4g}, z {z}, {chance})"


@dataclass(frozen=True)
class Component:
    """A component of variance: `share` of the whole, None where none is defined.

    `se` is its standard error, `low` and `high` are the ends of its interval; None: not known.
    `held`: why it is 0 and was not estimated, as the data do not tell it.
    """

    level: str
    variance: float
    share: float | None = None
    at_boundary: bool = False
    se: float | None = None
    low: float | None = None
    high: float | None = None
    held: str = ""


@dataclass(frozen=True)
class Correlation:
    """Of two coefficients at a level, with the ends of its interval, if they are known."""

    level: str
    name: str
    other: str
    estimate: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class UserEstimate:
    """One user's estimates.

    Parameters
    ----------
    estimate : its coefficients, shrunken, by name.
    own : from its own rows alone, if these are enough.
    se : prediction standard errors, if they are known.
    shrinkage : from 0, its own rows decide, to 1, its centre does.
    """

    estimate: dict[str, float]
    own: dict[str, float] | None
    se: dict[str, float | None] | None
    shrinkage: float


@dataclass(frozen=True)
class ClusterEstimate:
    """A cluster's coefficients w_j by name, and their standard errors, if they are known."""

    estimate: dict[str, float]
    se: dict[str, float | None] | None

    def text(self, those: Collection[ClusterEstimate]) -> str:
        """The first few in a line, with digits that tell it from the others of `those`."""
        parts = []
        for name, value in list(self.estimate.items())[:FEW_SHOWN]:
            told = number_text(value, scatter(those, name))
            parts.append(f"{name} {told}{error_text(self.se, name)}")
        return ", ".join(parts) + (", ..." if len(self.estimate) > FEW_SHOWN else "")


@dataclass(frozen=True)
class LinearSummary:
    """All of it.

    Parameters
    ----------
    coefficients : of the model of all; none where there is no such model.
    variances : from records to clusters.
    users : by their names; empty if they were not asked, or are too many.
    varying : the coefficients that differ between users.
    errors : how standard errors were found, or why there are none.
    units : what the numbers are in, where it is not the data's own units.
    left_out : users that are too many for this; their models are in files.
    clusters : by their names, where there are several.
    correlations : of all pairs of coefficients that vary.
    intervals : how those of variances were found, or why there are none.
    spread : what prediction intervals need (`spreads`), if there is sigma^2.
    dispersion : Pearson's chi^2 over its degrees of freedom, of losses that are likelihoods.
    likelihood : the restricted likelihood and the model that it is of; empty if there is none.
    """

    coefficients: list[Coefficient]
    variances: list[Component]
    users: dict[str, UserEstimate] = field(default_factory=dict)
    varying: list[str] = field(default_factory=list)
    errors: str = ""
    units: str = ""
    left_out: int = 0
    clusters: dict[str, ClusterEstimate] = field(default_factory=dict)
    correlations: list[Correlation] = field(default_factory=list)
    intervals: str = ""
    spread: dict[str, Any] | None = None
    dispersion: float | None = None
    likelihood: dict[str, Any] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """As the result's file has it."""
        return {
            "coefficients": [one.json() for one in self.coefficients],
            "variances": [asdict(one) for one in self.variances],
            "correlations": [asdict(one) for one in self.correlations],
            "intervals": self.intervals,
            "dispersion": self.dispersion,
            "users": {user: asdict(one) for user, one in self.users.items()},
            "clusters": {name: asdict(one) for name, one in self.clusters.items()},
            "varying": self.varying,
            "errors": self.errors,
            "units": self.units,
            "spread": self.spread,
            "likelihood": self.likelihood,
        }

    def findings(self) -> list[Finding]:
        """Short tables for the terminal."""
        found = []
        if self.coefficients:
            rows = [(one.name, one.text()) for one in self.coefficients[:COEFFICIENTS_SHOWN]]
            if (more := len(self.coefficients) - COEFFICIENTS_SHOWN) > 0:
                rows.append(("...", f"{more} more in result.json"))
            notes = [("standard errors", self.errors), ("units", self.units)]
            if self.dispersion is not None:
                notes.append(("overdispersion", dispersion_text(self.dispersion)))
            found.append(Finding("coefficients", rows + [note for note in notes if note[1]]))
        if 0 < len(self.clusters) <= FEW_SHOWN:
            rows = [(name, one.text(self.clusters.values())) for name, one in self.clusters.items()]
            found.append(Finding("clusters' estimates", rows))
        if self.left_out:
            told = f"of {self.left_out:,} users in coefficients.csv, without errors"
            found.append(Finding("users' estimates", [("too many for a table", told)]))
        if self.users and self.varying:
            found.append(Finding("users' estimates", self._of_users()))
        return found

    def _of_users(self) -> list[tuple[str, str]]:
        """The users' shrinkage, and the lowest and highest of them."""
        factors, name = np.array([one.shrinkage for one in self.users.values()]), self.varying[-1]
        rows = [
            ("shrinkage", f"mean {factors.mean():.2f}, {factors.min():.2f} to {factors.max():.2f}")
        ]
        order = sorted(self.users, key=lambda user: self.users[user].estimate[name])
        ends = [("lowest", order[:ENDS]), ("highest", order[::-1][:ENDS])]
        for what, users in ends if len(order) > 2 * ENDS else []:
            rows.append((f"{what} {name}", ", ".join(self._told(user, name) for user in users)))
        return rows

    def _told(self, user: str, name: str) -> str:
        """One user's coefficient."""
        one, apart = self.users[user], scatter(self.users.values(), name)
        return f"{user} {number_text(one.estimate[name], apart)}{error_text(one.se, name)}"


def number_text(value: float, step: float, least: int = 4) -> str:
    """A number with as many digits as it takes to see steps, of which there may be none."""
    digits = least
    if value and step:
        digits = max(least, math.floor(math.log10(abs(value))) - math.floor(math.log10(step)) + 2)
    return f"{value:.{min(digits, MOST_DIGITS)}g}"


def scatter(those: Iterable[UserEstimate | ClusterEstimate], name: str) -> float:
    """The standard deviation of a coefficient between some."""
    return float(np.std([one.estimate[name] for one in those]))


def dispersion_text(value: float) -> str:
    """Pearson's chi^2 over its degrees of freedom, and what is to be thought of it."""
    told = f"{value:.3g} (Pearson's chi^2 over its degrees of freedom"
    return told + (": rows scatter more than the family says)" if value > OVERDISPERSED else ")")


def error_text(errors: Mapping[str, float | None] | None, name: str) -> str:
    """A coefficient's error in brackets, if it is known."""
    error = None if errors is None else errors[name]
    return "" if error is None else f" (se {error:.3g})"


def spreads(state: MixedModelState, noise: float | None, exact: bool) -> dict[str, Any] | None:
    """Covariances for intervals of rows; None where labels have no sigma^2, or these are too many.

    Returns
    -------
    dict
        In the model's units: `sigma2`; `users`, D by cluster, of "" where all have the same;
        `above`, of centres around the middle; `centres` and `middle`, how sure these are; `open`,
        directions of the middle that the data leave open; `alone`: nothing ties users.
    """
    if (
        noise is None
        or not exact
        or state.covariance.size > MOST_SPREAD_NUMBERS
        or not len(state.w)
    ):
        return None
    names, fit = state.clusters.known[: len(state.w)], state.estimates.covariance
    if fit.kinds:
        users = dict(zip(fit.names or [""], fit.users, strict=True))
        above = sum((own for level, own in fit.levels.items() if level != "users"), noise * 0.0)
    else:
        users = {name: noise * freedom(row) for name, row in zip(names, state.used, strict=True)}
        above = noise * freedom(state.lam[0])
    lists = {
        "users": {name: own.tolist() for name, own in users.items()},
        "above": np.broadcast_to(above, state.w.shape[1:] * 2).tolist(),
        "centres": dict(zip(names, (noise * state.covariance).tolist(), strict=True)),
        "middle": (noise * state.around).tolist(),
        "open": state.unknown.tolist(),
    }
    return {"sigma2": noise, "alone": not state.used.any(), **lists}


def freedom(tie: Floats) -> Floats:
    """D over sigma^2 of strengths by coordinate: 0 for what is tied without end; 0 for what is not
    tied at all, which `alone` and the centres' covariances say."""
    with np.errstate(divide="ignore"):
        return np.diag(np.where(tie > 0, 1 / tie, 0.0))
