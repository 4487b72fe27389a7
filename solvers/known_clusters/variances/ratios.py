"""The likelihood over a grid of the users' ratios rho, at the clusters' best ratio tau.

All as likelihood.py has it. With many coefficients each look at it takes a product of matrices a
cluster and a factor, so what cannot be the best is not looked at closely.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.core.errors import ModelError
from corsage.solvers.known_clusters.columns import Columns
from corsage.solvers.known_clusters.likelihood import Level, deviance

RATIOS: Floats = np.concatenate([[0.0], np.geomspace(1e-6, 1e6, 19)])
"""tau, where the search for the best one begins."""
TAU_CLOSE, TAU_STEP = 1e-5, 0.05
"""log tau is that close where places are compared, as the deviance is flat there; and so far apart
are the points of a parabola."""
TAU_REACH = 2
"""From a place to the next one the best tau stays among so many neighbours to each side."""
FALLS = 1e-7
"""A deviance that falls by less stands still."""


@dataclass(frozen=True)
class Profile:
    """The likelihood over a grid of rho (k, G) and all tau.

    Parameters
    ----------
    clusters : what the users of each cluster and for each rho say of w_j, (G, k, ...).
    ld : the other sum of `Level` (G, k).
    records : how many records all users have.
    """

    clusters: Columns
    ld: Floats
    records: float

    @classmethod
    def of(cls, level: Level, records: float, varies: Floats | None = None) -> Profile:
        """From the sums over the users of each cluster (k, G); w_j differ where they `varies`."""
        d = level.q.shape[-1]
        if records <= d:
            raise ModelError(
                f"variances: {records:.0f} rows for {d} coefficients leave none to tell them by; "
                "give more rows, or fewer columns."
            )
        p, q, yy, ld = (np.swapaxes(part, 0, 1) for part in level)
        return cls(Columns.of(p, q, yy, varies), ld, records)

    def picked(self, picks: Ints) -> Profile:
        """At one place of the grid a cluster: (1, k, ...)."""
        ld = self.ld[picks, np.arange(len(picks))][None]
        return replace(self, clusters=self.clusters.picked(picks), ld=ld)

    def place(self, place: int) -> Profile:
        """All clusters at one place of the grid."""
        return self.picked(np.full(self.ld.shape[1], place))

    def at(self, tau: Floats | float) -> tuple[Floats, Floats]:
        """Deviance and sigma^2 (G,); tau is a number, or one a place."""
        level = self.clusters.total(tau)
        return deviance(level._replace(ld=level.ld + self.ld.sum(-1)), self.records)

    def value(self, tau: float) -> float:
        """The deviance, of a single place."""
        return float(self.at(tau)[0][0])

    @cached_property
    def tried(self) -> Floats:
        """The deviances (T, G) at `RATIOS`."""
        return np.stack([self.at(tau)[0] for tau in RATIOS])

    def near(self, tau: float) -> tuple[float, float]:
        """The best tau of a single place near to another one's, and the deviance there.

        The least of a parabola, if that is between its points; else it is searched for.
        """
        if self.ld.shape[1] == 1:
            return 0.0, self.value(0.0)
        first = self._parabola(tau, TAU_STEP) if tau > 0 else None
        found = self._parabola(first, TAU_STEP / 10) if first else None
        return (found, self.value(found)) if found else self.searched(tau)

    def _parabola(self, tau: float, step: float) -> float | None:
        """The least of a parabola through three points; None: not between them."""
        low, middle, high = (self.value(tau * np.exp(by)) for by in (-step, 0.0, step))
        bend = low + high - 2 * middle
        if bend > 0 and abs(move := (low - high) / (2 * bend)) < 1:
            return tau * float(np.exp(step * move))
        return None

    def searched(self, tau: float) -> tuple[float, float]:
        """The same by sections, between the ratios around it."""
        from scipy.optimize import minimize_scalar

        which, values = self._around(tau)
        best = int(np.argmin(values))
        ends = RATIOS[which[max(best - 1, 0)]], RATIOS[which[min(best + 1, len(which) - 1)]]
        found = minimize_scalar(
            lambda log: self.value(np.exp(log)),
            bounds=np.log(np.maximum(ends, RATIOS[1])),
            method="bounded",
            options={"xatol": TAU_CLOSE},
        )
        if values[best] <= found.fun:
            return float(RATIOS[which[best]]), values[best]
        return float(np.exp(found.x)), float(found.fun)

    def _around(self, tau: float) -> tuple[list[int], list[float]]:
        """Neighbours of tau among `RATIOS`, the best of them not at an end, if there are more."""
        last = len(RATIOS) - 1
        middle = int(np.searchsorted(RATIOS, tau))
        which = [i for i in range(middle - TAU_REACH, middle + TAU_REACH) if 0 <= i <= last]
        values = [self.value(RATIOS[i]) for i in which]
        while (best := int(np.argmin(values))) in (0, len(which) - 1):
            new = which[0] - 1 if best == 0 else which[-1] + 1
            if not 0 <= new <= last:
                break
            place = 0 if best == 0 else len(which)
            which.insert(place, new)
            values.insert(place, self.value(RATIOS[new]))
        return which, values

    def common(self) -> tuple[Ints, float]:
        """The best place, the same for all clusters (k,), and the best tau there.

        A place is looked at closely if it may be the best: between neighbouring ratios a deviance
        that is convex in log tau falls by no more than it rises to the higher neighbour.
        """
        if self.ld.shape[1] == 1:
            return np.array([self.at(0.0)[0].argmin()]), 0.0
        coarse, best = self.tried.min(0), self.tried.argmin(0)
        places = np.arange(len(best))
        ends = np.clip([best - 1, best + 1], 0, len(RATIOS) - 1)
        bound = 2 * coarse - self.tried[ends, places].max(0)
        found, middle, least = 0, 0.0, np.inf
        for place in coarse.argsort(kind="stable").tolist():
            if bound[place] < least:
                tau, value = self.place(place).searched(RATIOS[best[place]])
                if value < least:
                    found, middle, least = place, tau, value
        return np.full(self.ld.shape[1], found), middle

    def apart(self, picks: Ints, tau: float) -> tuple[Ints, float]:
        """The places (k,) of each cluster's best rho, found cluster by cluster from `picks` on.

        They end when the deviance falls no more: two places that rounding alone tells apart end it.
        `tau` is the best one nearby; found is that of these places.
        """
        before, tau = np.inf, self.picked(picks).near(tau)[0]
        while True:
            picks = self._swept(picks, tau)
            tau, after = self.picked(picks).near(tau)
            if after > before - FALLS:
                return picks, tau
            before = after

    def _swept(self, picks: Ints, tau: float) -> Ints:
        """Every cluster in turn at its best place, given tau and the places of the others."""
        picks, count = picks.copy(), len(picks)
        levels = [self.clusters.unit(j).total(tau) for j in range(count)]
        levels = [one._replace(ld=one.ld + self.ld[:, j]) for j, one in enumerate(levels)]
        now = [at(own, pick) for own, pick in zip(levels, picks, strict=True)]
        total = Level(*(np.sum(parts, axis=0) for parts in zip(*now, strict=True)))
        for j, own in enumerate(levels):
            tried = Level(*(t + part - part[picks[j]] for t, part in zip(total, own, strict=True)))
            picks[j] = deviance(tried, self.records)[0].argmin()
            total = at(tried, picks[j])
        return picks


def at(level: Level, place: int) -> Level:
    """At one place of the grid."""
    return Level(*(part[place] for part in level))


@dataclass(frozen=True)
class Close:
    """Places of rho (k, G) that are close together: there is one least.

    Parameters
    ----------
    level : the sums over the users of each cluster.
    records, varies : as `Profile` has them.
    """

    level: Level
    records: float
    varies: Floats | None

    def at(self, picks: Ints) -> Profile:
        """Each cluster at its place; no other is taken apart into eigenvectors."""
        rows = np.arange(len(picks))[:, None], picks[:, None]
        return Profile.of(Level(*(part[rows] for part in self.level)), self.records, self.varies)

    def common(self, picks: Ints, tau: float) -> tuple[Ints, float]:
        """The best place, the same for all, found from one of them on, and the best tau there.

        `tau` is the best one nearby.
        """
        place, known = int(picks[0]), dict[int, tuple[float, float]]()
        while True:
            for other in (place, place - 1, place + 1):
                if 0 <= other < self.level.yy.shape[1] and other not in known:
                    tau, least = self.at(np.full(len(picks), other)).near(tau)
                    known[other] = least, tau
            best = min(known, key=lambda one: (known[one][0], one))
            if best == place:
                return np.full(len(picks), place), known[place][1]
            place = best

    def apart(self, picks: Ints, tau: float) -> tuple[Ints, float]:
        """The best places, of each cluster its own, and the best tau there."""
        return Profile.of(self.level, self.records, self.varies).apart(picks, tau)
