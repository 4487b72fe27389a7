"""Users whose sums are not like the others': who is set aside before covariances are fitted.

A fit expects of a user's own estimate e = A^+ b that it is around the mean m of its centre, and of
its own squares that they are noise. Over sigma^2, with D between users and C of m,

    between = (e - m)'V^-1 (e - m),  V = A^+ + D + C,     chi^2 of rank A,
    within  = y'y - b'A^+ b,                              chi^2 of records - rank A,

both as N(0, 1). m and C are those of all others: sums add up, so a user is taken out of them
without another fit. With A^+ + D = K K' and B = K^-1 C K'^-1, of all users, its between is
e'K'^-1 (I - B)^-1 K^-1 e; of a user that was not in the fit it is that with I + B.

Scores are over max(1, their median deviation): tables with heavy tails alarm nobody. Who is beyond
`ALARM` over the number of users, and far beyond all who are not, is set aside, `MOST_UNLIKE` of all
at most; the others are fitted again, until the set stands. It begins with medians of users' own
estimates, which a few cannot move.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from corsage.core.arrays import Bools, Floats, Ints
from corsage.solvers.known_clusters.absorbed import Level
from corsage.solvers.known_clusters.blocks import Sums
from corsage.solvers.known_clusters.lanes import AT_ONCE
from corsage.solvers.known_clusters.tree import Tree
from corsage.solvers.known_clusters.variances.scoring import Fitted, Scoring
from corsage.solvers.known_clusters.variances.shape_choice import (
    CLOSE,
    LEAST_APART,
    MOST_APART,
    apart,
    equal_shapes,
    grouped,
    started,
)
from corsage.solvers.known_clusters.variances.shapes import DIAGONAL

ALARM = 0.01
"""Honest federations of which somebody is set aside, by chance alone."""
MOST_UNLIKE = 0.3
"""Of all users; of more nobody could say who is like whom."""
MOST_FITS = 12
"""Fits after which the set is taken as it is."""
NEAR_THE_CUT, WELL = 1.5, 0.85
"""Of the cut, how far who is put back is at most without it, and with it."""
MOST_BACK = 8
"""Users that are put back, at most: each costs a fit."""
DEVIATION = 1.4826
"""Of a normal distribution its deviation over its median deviation."""
NOISES = 0.35
"""Deviation between honest users of the logarithm of their noise, at least."""
CLEAR_GAP = 1.2
"""Tails that are heavy have no gaps."""
UNSURE = 2 * 1.17
"""Two standard errors of a normal median deviation, as a share of it, times the root of n."""
SUSPECT = 2.0
"""Who is beyond this score by medians is not in the first fit: liars who are in it hide each other
behind the variance that they make; who is honest comes back."""
FEWEST_OF_CLUSTER = 4
"""Users of a cluster that has a median of its own."""
FLAT_SUMS = 1e-10
"""The share of the largest curvature below which an estimate has no curvature."""
KNOWN_TO_ONE = 1e-6
"""The share of what is known of a centre below which the others know nothing of it."""


@dataclass(frozen=True)
class Expected:
    """The expectations of users; covariances are over sigma^2.

    Parameters
    ----------
    unit : each user's place among what follows (n,).
    mean, sure : of their centres (k, d), and how well they are known (k, d, d).
    spread : of users around them (k, d, d).
    sigma2 : of the noise.
    """

    unit: Ints
    mean: Floats
    sure: Floats
    spread: Floats
    sigma2: float

    @classmethod
    def of(cls, found: Fitted, level: Level) -> Expected:
        """By a fit, of all users of a level, those that are not in it with them."""
        centres, spread = found.found.known_above()[0], found.covariances[0]
        spread = np.broadcast_to(spread, centres.covariance.shape)
        sigma2 = found.found.middle.sigma2
        return cls(level.parent, centres.mean, centres.covariance, spread, sigma2)


@dataclass(frozen=True)
class Own:
    """Users' own estimates, along the directions (n, d, d) in which they have one.

    Parameters
    ----------
    directions : columns; 0 for those in which a user's records say nothing.
    along : the estimates (n, d).
    unsure : their variances over sigma^2 (n, d); 0 where there is no direction.
    square, free : what they leave of y'y, and its degrees of freedom (n,).
    """

    directions: Floats
    along: Floats
    unsure: Floats
    square: Floats
    free: Floats

    @classmethod
    def of(cls, sums: Sums, counts: Floats) -> Own:
        """From users' sums."""
        values, vectors = np.linalg.eigh(sums.a)
        there = values > FLAT_SUMS * np.maximum(values[:, -1:], 0.0)
        unsure = np.divide(1.0, values, out=np.zeros_like(values), where=there)
        slopes = (sums.b[:, None] @ vectors)[:, 0]
        square = np.maximum(sums.yy - (np.square(slopes) * unsure).sum(1), 0.0)
        directions = vectors * there[:, None]
        return cls(directions, slopes * unsure, unsure, square, counts - there.sum(1))

    @property
    def estimate(self) -> Floats:
        """The shortest (n, d)."""
        return np.asarray((self.directions @ self.along[..., None])[..., 0])

    @property
    def full(self) -> Bools:
        """True for users with as many directions as most have (n,)."""
        rank = (self.unsure > 0).sum(1)
        return np.asarray(rank >= np.median(rank))

    def between(self, expected: Expected, inside: Bools) -> tuple[Floats, Floats]:
        """e'V^-1 e and its degrees of freedom; `inside`: who is in the fit that expects it."""
        turn, unit = self.directions, expected.unit
        around = expected.mean[unit][:, None] @ turn
        away = (self.along - around[:, 0])[..., None]
        known, spread = (turn.mT @ own[unit] @ turn for own in (expected.sure, expected.spread))
        there = self.unsure > 0
        sizes = np.where(there, self.unsure, 1.0)
        sizes = sizes + KNOWN_TO_ONE**2 * np.trace(spread, axis1=1, axis2=2)[:, None]
        root = np.linalg.cholesky(spread + sizes[:, None] * np.eye(there.shape[1]))
        away = np.asarray(np.linalg.solve(root, away), np.float64)
        half = np.linalg.solve(root, known)
        known = np.asarray(np.linalg.solve(root, half.mT), np.float64)
        values, vectors = np.linalg.eigh((known + known.mT) / 2)
        left = 1 + np.where(inside, -1.0, 1.0)[:, None] * values
        told = left > KNOWN_TO_ONE
        squares = np.square(vectors.mT @ away)[..., 0] / np.where(told, left, 1.0)
        return (squares * told).sum(1), told.sum(1) - (~there).sum(1)


@dataclass(frozen=True)
class Scores:
    """Scores of users, as N(0, 1) (n,): see the file's head."""

    between: Floats
    within: Floats

    @classmethod
    def of(cls, sums: Sums, counts: Floats, expected: Expected, inside: Bools) -> Scores:
        """Of users, some after the others."""
        found = []
        for first in range(0, len(counts), AT_ONCE):
            some = slice(first, first + AT_ONCE)
            own = Own.of(Sums(*(part[some] for part in sums)), counts[some])
            unit = expected.unit[some]
            here = replace(expected, unit=unit)
            square, free = own.between(here, inside[some])
            noise = expected.sigma2
            found.append(
                [normal(square / noise, free), apart_as_noise(own.square / noise, own.free)]
            )
        between, within = np.concatenate(found, axis=1)
        return cls(even(between, inside), even(within, inside))

    @property
    def size(self) -> Floats:
        """The larger one; an estimate is never too near to the others'."""
        return np.maximum(self.between, np.abs(self.within))

    @property
    def cut(self) -> float:
        """The score that one of so many honest users is beyond with a chance of `ALARM`."""
        return NormalDist().inv_cdf(1 - ALARM / len(self.size))

    @property
    def unlike(self) -> Bools:
        """True for those beyond the cut, and `CLEAR_GAP` times as far as all others."""
        order = np.sort(self.size)
        reach = np.maximum(self.cut, CLEAR_GAP * order[:-1])
        first = len(order) - 1 - int(MOST_UNLIKE * len(order))
        wide = np.flatnonzero(order[first + 1 :] > reach[first:])
        return self.size > (order[first + wide[0]] if len(wide) else np.inf)

    def beyond(self, score: float) -> Bools:
        """True for those with a larger one, but for `MOST_UNLIKE` at most."""
        size, most = self.size, int(MOST_UNLIKE * len(self.size))
        beyond = size > score
        if beyond.sum() > most:
            beyond[np.argsort(-size, kind="stable")[most:]] = False
        return np.asarray(beyond)


def normal(squares: Floats, free: Floats) -> Floats:
    """chi^2 as N(0, 1) (Wilson and Hilferty 1931); 0 where nothing is free."""
    k = np.maximum(free, 1.0)
    spread = 2 / (9 * k)
    found = (np.cbrt(squares / k) - (1 - spread)) / np.sqrt(spread)
    return np.where(free > 0, found, 0.0)


def apart_as_noise(squares: Floats, free: Floats) -> Floats:
    """The same of users whose noise differs by `NOISES`; what is large by its logarithm."""
    k = np.maximum(free, 1.0)
    ratio = squares / k
    away = np.where(ratio < 1, 3 * np.cbrt(ratio) - 3, np.log(np.maximum(ratio, 1.0)))
    return np.where(free > 0, away / np.sqrt(2 / k + NOISES**2), 0.0)


def even(scores: Floats, inside: Bools) -> Floats:
    """Over the median deviation of who is in the fit, as far as that is above 1 by no chance."""
    told = scores[inside & (scores != 0)]
    if not len(told):
        return scores
    deviation = DEVIATION * float(np.median(np.abs(told - np.median(told))))
    return np.asarray(scores / max(1.0, deviation / (1 + UNSURE / np.sqrt(len(told)))))


def suspects(sums: Sums, counts: Floats, cluster: Ints, k: int) -> Bools:
    """Name users to leave out of the first fit (n,); nobody where users' own estimates do not tell.

    Coefficients are in units in which most users' columns are alike.
    """
    squares = np.median(np.einsum("nii->ni", sums.a) / np.maximum(counts, 1)[:, None], axis=0)
    unit = 1 / np.sqrt(np.where(squares > 0, squares, 1.0))
    alike = Sums.of(sums.a * unit[:, None] * unit, sums.b * unit, sums.yy)
    own = Own.of(alike, counts)
    told, free = own.full, own.free > 0
    if 2 * told.sum() < len(told) or 2 * free.sum() < len(free):
        return np.zeros(len(counts), bool)
    typical = (1 - 2 / (9 * own.free[free])) ** 3
    noise = float(np.median(own.square[free] / own.free[free] / typical))
    if noise <= FLAT_SUMS * float(np.median(sums.yy / np.maximum(counts, 1))):
        return np.zeros(len(counts), bool)
    estimate = own.estimate
    mean = np.tile(np.median(estimate[told], axis=0), (k, 1))
    for place in range(k):
        some = told & (cluster == place)
        if some.sum() >= FEWEST_OF_CLUSTER:
            mean[place] = np.median(estimate[some], axis=0)
    away = np.abs(estimate - mean[cluster])[told]
    variance = np.square(DEVIATION * np.median(away, axis=0)) / noise
    spread = np.broadcast_to(np.diag(variance), (k, *sums.a.shape[1:]))
    expected = Expected(cluster, mean, np.zeros_like(spread), spread, noise)
    found = Scores.of(alike, counts, expected, np.zeros(len(counts), bool))
    return found.beyond(SUSPECT)


def near(tree: Tree, varies: Ints) -> Fitted:
    """A fit to judge by: a variance a coefficient; a size a cluster, if it explains more (AIC)."""
    shapes = equal_shapes(tree, DIAGONAL, varies)
    found = Scoring(tree, shapes).fitted(enough=CLOSE)
    users, clusters = len(tree.counts), tree.levels[0].above
    if not 1 < clusters <= min(MOST_APART, users // LEAST_APART):
        return found
    shapes = apart(tree, shapes)
    whole = grouped(tree, shapes)
    sizes = Scoring(whole, shapes).fitted(started(found, shapes), enough=CLOSE)
    return sizes if sizes.deviance + 2 * (clusters - 1) < found.deviance else found


def stands(first: Bools, scored: Callable[[Bools], Scores]) -> tuple[Bools, Scores]:
    """Find the set to leave aside, and all scores by the fit to the others.

    Fits without the largest of honest users find too small a variance to have them back. So who is
    near is put back by itself, the nearest first, as long as it is then well like the others.
    """
    aside, found = unchanged(first, scored)
    cut = found.cut
    for _ in range(min(MOST_BACK, int(aside.sum()))):
        sizes = np.where(aside, found.size, np.inf)
        nearest = sizes.argmin()
        if sizes[nearest] > NEAR_THE_CUT * cut:
            break
        fewer = aside & (np.arange(len(aside)) != nearest)
        after = scored(fewer)
        if after.size[nearest] > WELL * cut:
            break
        aside, found = fewer, after
    return aside, found


def unchanged(first: Bools, scored: Callable[[Bools], Scores]) -> tuple[Bools, Scores]:
    """The set that the fit without it names again.

    Of sets that come again in turn all are set aside: nobody in them is like all others.
    """
    seen: Sequence[Bools] = [first]
    while True:
        found = scored(seen[-1])
        after = found.unlike
        same = [place for place, one in enumerate(seen) if (one == after).all()]
        if same and same[0] < len(seen) - 1:
            after = np.logical_or.reduce(list(seen[same[0] :]))
            return after, scored(after)
        if same or len(seen) == MOST_FITS:
            return after, found
        seen = [*seen, after]
