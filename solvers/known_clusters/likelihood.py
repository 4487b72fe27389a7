"""The restricted likelihood of users in clusters, from sums over each cluster's users.

The hierarchical linear model of Lyu et al. 2022, (5.1), with one noise variance for all records:

    w_j ~ N(wbar, sb^2 I),    theta_i ~ N(w_j, s_j^2 I),    y_i ~ N(X_i theta_i, sigma^2 I),

and a flat wbar. Everything is in units of sigma^2: rho_j = s_j^2/sigma^2, tau = sb^2/sigma^2. Users
and clusters are integrated out by the same formulas (`absorbed`), sigma^2 is always the best one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.core.errors import ModelError
from corsage.solvers.known_clusters.lanes import WIDEST
from corsage.solvers.known_clusters.partial import Partial
from corsage.solvers.known_clusters.spectra import Spectra

RATIOS: Floats = np.concatenate([[0.0], np.geomspace(1e-6, 1e6, 19)])
"""tau, where the search for the best one begins."""
GOLDEN = (5**0.5 - 1) / 2
NARROWINGS = 26
"""Golden sections between neighbours there: tau to 5 digits."""
WINDOW = 8
"""So many neighbours on the grid of rho say what the sums are between them."""
FALLS = 1e-7
"""A deviance that falls by less stands still."""
SINGULAR = 1e-12
"""What is below this share of the largest eigenvalue says nothing of wbar."""
NO_NOISE = 1e-200
"""The sum of squares between records where there are none: all labels are equal."""


class Level(NamedTuple):
    """-2 log likelihood given a centre w: yy - 2 q'w + w'P w, over sigma^2, and ld."""

    p: Floats
    q: Floats
    yy: Floats
    ld: Floats

    def total(self) -> Level:
        """The sum over the first axis."""
        return Level(*(part.sum(0) for part in self))


def spectra_of(a: Floats, b: Floats, varies: Floats | None) -> Spectra | Partial:
    """Of A and b; only coordinates whose `varies` is 1 deviate from the centre, all if None."""
    return Spectra.of(a, b) if varies is None else Partial.of(a, b, varies)


def absorbed(below: Spectra | Partial, yy: Floats, rho: Floats) -> Level:
    """x ~ N(w, rho I) integrated out of a quadratic with eigenvalues W and slopes Q'b.

    Of a `Partial` only what varies is integrated out: x = w + D u, u ~ N(0, rho I).

    P = Q diag(W/(1 + rho W)) Q', q = Q (Q'b/(1 + rho W)), yy - sum rho (Q'b)^2/(1 + rho W), and
    ld = sum log(1 + rho W).
    """
    growth = 1 + rho[..., None] * below.values
    with np.errstate(divide="ignore"):
        p, q = below.shrunk(1 / rho)
    explained = rho[..., None] * np.square(below.slopes) / growth
    return Level(p, q, yy - explained.sum(-1), np.log(growth).sum(-1))


def between(level: Level, grid: Floats, rho: Floats) -> Level:
    """The sums at `rho` (k, R) from those on `grid` (k, G), which is 0, then even in its logarithm.

    P, q and yy are mixtures of 1/(1 + rho W) over W >= 0, one mixture for all three. Times the root
    of rho such terms are bells over log rho, of a width of 2 to 3, and polynomials through their
    neighbours are close to them. Between 0 and the first rho > 0 there is nothing to go by.
    """
    nodes = np.log(grid[:, 1:])
    at = np.log(np.maximum(rho, grid[:, 1:2]))[..., None]
    first = np.sum(nodes[:, None] <= at, axis=-1) - WINDOW // 2
    places = np.clip(first, 0, nodes.shape[1] - WINDOW)[..., None] + np.arange(WINDOW)
    near = np.take_along_axis(nodes[:, None], places, -1)
    same = np.eye(WINDOW, dtype=bool)
    steps = np.where(same, 1.0, near[..., :, None] - near[..., None, :])
    shares = (np.where(same, 1.0, (at - near)[..., None, :]) / steps).prod(-1)
    plain, bells = np.zeros((2, *rho.shape, grid.shape[1]))
    np.put_along_axis(plain, places + 1, shares, -1)
    np.put_along_axis(bells, places + 1, shares * np.exp((near - at) / 2), -1)
    for weights in (plain, bells):
        weights[rho == 0] = np.eye(grid.shape[1])[0]
    return Level(
        np.einsum("krg,kgij->krij", bells, level.p, optimize=True),
        np.einsum("krg,kgi->kri", bells, level.q),
        np.einsum("krg,kg->kr", bells, level.yy),
        np.einsum("krg,kg->kr", plain, level.ld),
    )


def deviance(total: Level, records: float) -> tuple[Floats, Floats]:
    """-2 log restricted likelihood, wbar integrated out, and the best sigma^2.

    From the sums over all clusters, (..., d, d).
    """
    told, size, free = explained(total)
    square = total.yy - told
    free = records - free
    square = np.maximum(square, SINGULAR * total.yy)  # of data without noise
    sigma2 = np.maximum(square, NO_NOISE) / free
    found = free * (1 + np.log(2 * np.pi * sigma2)) + total.ld + size
    return found, sigma2


def explained(total: Level) -> tuple[Floats, Floats, Floats]:
    """q'P^+q, the logarithm of P's determinant and its rank (...,), over what P tells at all.

    Where it tells everything a factor does, which of large P is ten times as fast as eigenvalues.
    """
    if (d := total.p.shape[-1]) > WIDEST:
        least = SINGULAR * np.trace(total.p, axis1=-2, axis2=-1)[..., None, None]
        try:
            np.linalg.cholesky(total.p - least * np.eye(d))  # no eigenvalue is below that
            factor = np.linalg.cholesky(total.p)
        except np.linalg.LinAlgError:
            pass
        else:
            along = np.linalg.solve(factor, total.q[..., None])[..., 0]
            sizes = 2 * np.log(np.diagonal(factor, 0, -2, -1)).sum(-1)
            return np.square(along).sum(-1), sizes, np.full(sizes.shape, float(d))
    values, vectors = np.linalg.eigh(total.p)
    slopes = (total.q[..., None, :] @ vectors)[..., 0, :]
    sound = values > SINGULAR * values[..., -1:]
    safe = np.where(sound, values, 1.0)
    told = np.where(sound, np.square(slopes) / safe, 0.0).sum(-1)
    return told, np.log(safe).sum(-1), sound.sum(-1).astype(np.float64)


@dataclass(frozen=True)
class Profile:
    """The likelihood over a grid of rho (k, G) and all tau.

    Parameters
    ----------
    below : what the users of each cluster and for each rho say of w_j, (k, G, ...).
    yy, ld : the other two sums of `Level` (k, G).
    records : how many records all users have.
    """

    below: Spectra | Partial
    yy: Floats
    ld: Floats
    records: float

    @classmethod
    def of(cls, level: Level, records: float, varies: Floats | None = None) -> Profile:
        """From the sums over the users of each cluster; w_j differ where they `varies`."""
        d = level.q.shape[-1]
        if records <= d:
            raise ModelError(
                f"variances: {records:.0f} records for {d} coordinates; more records are needed."
            )
        return cls(spectra_of(level.p, level.q, varies), level.yy, level.ld, records)

    def picked(self, picks: Ints) -> Profile:
        """At one place of the grid a cluster: (k, 1, ...)."""
        rows = np.arange(len(picks))[:, None], picks[:, None]
        return Profile(self.below.at(rows), self.yy[rows], self.ld[rows], self.records)

    def levels(self, tau: Floats | float) -> Level:
        """Each cluster with its w_j integrated out; tau is a number, or one a place (G,)."""
        level = absorbed(self.below, self.yy, np.broadcast_to(tau, self.yy.shape))
        return level._replace(ld=level.ld + self.ld)

    def at(self, tau: Floats | float) -> tuple[Floats, Floats]:
        """Deviance and sigma^2 (G,) with all clusters at the same place of the grid."""
        return deviance(self.levels(tau).total(), self.records)

    def best(self) -> tuple[Floats, Floats, Floats]:
        """The best tau at each place of the grid, deviance and sigma^2 there, (G,) each.

        Of one cluster no tau is told from another: its centre is wbar.
        """
        if len(self.yy) == 1:
            tau = np.zeros(self.yy.shape[1])
            return tau, *self.at(tau)
        tried = np.stack([self.at(tau)[0] for tau in RATIOS])
        best = tried.argmin(0)
        low = np.log(RATIOS[np.maximum(best - 1, 1)])
        high = np.log(RATIOS[np.minimum(best + 1, len(RATIOS) - 1)])
        inner, outer = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        at_inner, at_outer = self.at(np.exp(inner))[0], self.at(np.exp(outer))[0]
        for _ in range(NARROWINGS):
            left = at_inner < at_outer
            low, high = np.where(left, low, inner), np.where(left, outer, high)
            new = np.where(left, high - GOLDEN * (high - low), low + GOLDEN * (high - low))
            at_new = self.at(np.exp(new))[0]
            inner, outer = np.where(left, new, outer), np.where(left, inner, new)
            at_inner, at_outer = (
                np.where(left, at_new, at_outer),
                np.where(left, at_inner, at_new),
            )
        middle = np.exp((low + high) / 2)
        tau = np.where(tried[0] <= self.at(middle)[0], 0.0, middle)
        return tau, *self.at(tau)

    def picks(self, start: Ints | None, *, common: bool) -> Ints:
        """The places (k,) of each cluster's best rho: `common`, the same place for all.

        Each for itself they are found cluster by cluster, from `start` (else the common place) on,
        as long as the deviance falls: two places that rounding alone tells apart end it too.
        """
        if common or start is None:
            start = np.full(len(self.yy), self.best()[1].argmin())
        before, picks = np.inf, start
        while not common:
            picks = self._swept(picks)
            after = float(self.picked(picks).best()[1][0])
            if after > before - FALLS:
                break
            before = after
        return picks

    def _swept(self, picks: Ints) -> Ints:
        """Every cluster in turn at its best place, given tau and the places of the others."""
        levels, picks = self.levels(self.picked(picks).best()[0]), picks.copy()
        rows = np.arange(len(picks))
        total = Level(*(part[rows, picks].sum(0) for part in levels))
        for j, pick in enumerate(picks):
            tried = Level(
                *(t + part[j] - part[j, pick] for t, part in zip(total, levels, strict=True))
            )
            picks[j] = deviance(tried, self.records)[0].argmin()
            total = Level(*(part[picks[j]] for part in tried))
        return picks
