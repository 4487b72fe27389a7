"""Strengths of the mixed model of several classes, their units, and candidates for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from corsage.core.arrays import Floats
from corsage.solvers.known_clusters.centre_descent import Centres, Descent
from corsage.solvers.known_clusters.multinomial import NO_FOLD

STRENGTH_GRID: Mapping[str, tuple[float, ...]] = {
    "rho": (10.0, 1.0, 0.1, 0.01),
    "intercepts": (10.0, 1.0, 0.1, 0.01),
    "slopes": (np.inf, 100.0, 10.0, 1.0, 0.1),
    "cluster_intercepts": (np.inf, 10.0, 1.0, 0.1),
    "cluster_slopes": (np.inf, 100.0, 10.0, 1.0, 0.1),
}
"""Strengths that are tried, the strongest first, in units in which features have variance 1."""


@dataclass(frozen=True)
class Strength:
    """gamma of slopes and of intercepts, lambda of both, and rho, in units of `Scale`."""

    slopes: float = 100.0
    intercepts: float = 0.1
    cluster_slopes: float = np.inf
    cluster_intercepts: float = np.inf
    rho: float = 1.0


class Scale(NamedTuple):
    """The units of strengths: of slopes and of intercepts."""

    slopes: float
    intercepts: float

    @classmethod
    def of(cls, squares: Floats, intercept: bool, share: float) -> Scale:
        """Out of sum z z' (d, d), in which a record weighs `share`: features' mean variance."""
        own = np.diagonal(squares)
        if not intercept:
            return cls(share * float(own.mean()) or 1.0, share)
        around = own[:-1] / own[-1] - (squares[-1, :-1] / own[-1]) ** 2
        return cls(share * float(around.mean()) or 1.0, share)

    def raw(self, slopes: float, intercepts: float, varies: Floats, intercept: bool) -> Floats:
        """Strengths as they are in (2.3), by coefficient (d,); infinite where none may vary."""
        found = np.full(len(varies), slopes * self.slopes)
        if intercept:
            found[-1] = intercepts * self.intercepts
        return np.where(varies > 0, found, np.inf)

    def told(self, strength: float) -> tuple[float, float]:
        """A strength as it is in (2.3), in these units."""
        return strength / self.slopes, strength / self.intercepts


@dataclass
class Candidate:
    """A problem on its way down: its strengths, the fold that it leaves out, and what that cost."""

    strength: Strength
    centres: Centres
    descent: Descent
    fold: int = NO_FOLD
    held: tuple[float, float] = (0.0, 0.0)

    def over(self, enough: float) -> bool:
        """True if the slope is so small a share of the first one."""
        descent = self.descent
        return bool(descent.way.size) and (descent.stuck or descent.left <= enough)

    def told(self, value: float, slopes: Floats, held: Floats) -> None:
        """Take over the users' sums of the place that it looked at."""
        before = self.descent.value
        self.descent.told(*self.centres.whole(self.descent.next, value, slopes))
        if self.descent.value != before:
            self.held = float(held[0]), float(held[1])
