"""Users in clusters, clusters in the middle, and more levels: likelihood and estimates from sums.

The hierarchical model of Lyu et al. 2022, (5.1), with any covariance D_l = L_l L_l' a level l, in
units of the noise sigma^2, and any number of levels:

    theta_i ~ N(w_j, D_1),   w_j ~ N(v_h, D_2),   ...,   v ~ N(wbar, D_top),   flat wbar.

A unit (a user, a cluster, ...) says of its coefficients x what is left when all below it are
integrated out: yy - 2 b'x + x'A x, over sigma^2, and ld. Of a user A = X'X, b = X'y, yy = y'y. With
its own x integrated out, too, it says of its centre w the same with (K = I + L'AL)

    P = A - A L K^-1 L'A,   q = b - A L K^-1 L'b,   yy - b'L K^-1 L'b,   ld + log|K|;

these add up to what the unit above says. No inverse of D is needed, so it may be singular or 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.core.errors import ModelError
from corsage.solvers.known_clusters.likelihood import NO_NOISE, SINGULAR
from corsage.solvers.known_clusters.mixed_model import by_cluster


class Sums(NamedTuple):
    """What units say of their coefficients: A (n, d, d), b (n, d), yy (n,) and ld (n,)."""

    a: Floats
    b: Floats
    yy: Floats
    ld: Floats

    @classmethod
    def of(cls, a: Floats, b: Floats, yy: Floats) -> Sums:
        """Of users: nothing is integrated out yet."""
        return cls(a, b, yy, np.zeros(len(b)))

    def at(self, rows: Ints) -> Sums:
        """Some units."""
        return Sums(*(part[rows] for part in self))


@dataclass(frozen=True)
class Level:
    """One level of units: the unit above each (n,), and how many of these there are.

    `group` (n,) says which of the level's covariances a unit has.
    """

    parent: Ints
    above: int
    group: Ints

    @classmethod
    def plain(cls, parent: Ints, above: int) -> Level:
        """One covariance for all."""
        return cls(parent, above, np.zeros(len(parent), np.int64))

    def at(self, rows: Ints) -> Level:
        """Some units."""
        return Level(self.parent[rows], self.above, self.group[rows])


def levels_of(cluster: Ints, k: int) -> tuple[Level, ...]:
    """Users in k clusters; a single cluster is the middle itself."""
    users = Level.plain(cluster, k)
    return (users,) if k == 1 else (users, Level.plain(np.zeros(k, np.int64), 1))


@dataclass(frozen=True)
class Absorbed:
    """A level whose units' own deviations are integrated out, given their roots L (n, d, r).

    Parameters
    ----------
    below : what its units say of themselves.
    said : what they say of their centres: P, q, yy, ld.
    spread : of a unit around its centre, given what is below it (n, d, d).
    """

    below: Sums
    said: Sums
    spread: Floats

    @classmethod
    def of(cls, below: Sums, root: Floats) -> Absorbed:
        """K = I + L'AL, as above."""
        al, lb = below.a @ root, (root.mT @ below.b[..., None])
        k = np.eye(root.shape[-1]) + root.mT @ al
        inverse = np.linalg.inv(k)
        p = below.a - al @ inverse @ al.mT
        solved = inverse @ lb
        said = Sums(
            (p + p.mT) / 2,
            below.b - (al @ solved)[..., 0],
            below.yy - (lb.mT @ solved)[..., 0, 0],
            below.ld + np.linalg.slogdet(k)[1],
        )
        return cls(below, said, root @ inverse @ root.mT)

    def summed(self, level: Level) -> Sums:
        """What the units above say."""
        return Sums(*(by_cluster(part, level.parent, level.above) for part in self.said))

    def own(self, centre: Known) -> Known:
        """What is known of each unit's x, from what is known of its centre."""
        a, b = self.below.a, self.below.b
        mean = centre.mean + (self.spread @ (b - _times(a, centre.mean))[..., None])[..., 0]
        rest = np.eye(a.shape[-1]) - self.spread @ a
        return Known(mean, self.spread + rest @ centre.covariance @ rest.mT)


class Known(NamedTuple):
    """What is known of units given all data: means (n, d), covariances (n, d, d) over sigma^2."""

    mean: Floats
    covariance: Floats

    def of(self, level: Level) -> Known:
        """Of the units above, for each unit of a level."""
        return Known(self.mean[level.parent], self.covariance[level.parent])


@dataclass(frozen=True)
class Middle:
    """wbar with its covariance over sigma^2, and the deviance that goes with it.

    `square` is what is left of all labels, in units of sigma^2 those that are `free`.
    """

    known: Known
    sigma2: float
    deviance: float
    unknown: Floats
    square: float
    free: float

    @classmethod
    def of(
        cls, said: Sums, records: float, sigma2: float | None, restricted: bool = True
    ) -> Middle:
        """-2 log restricted likelihood: wbar integrated out; sigma^2 is the best, or as given.

        Of the likelihood as it is wbar is the best: as if it were known.
        """
        p, q, yy, ld = (part.sum(0) for part in said)
        values, vectors = np.linalg.eigh(p)
        sound = values > SINGULAR * values[-1]
        safe = np.where(sound, values, 1.0)
        slopes = np.where(sound, q @ vectors, 0.0)
        free = records - sound.sum() * restricted
        square = float(yy - (np.square(slopes) / safe).sum())
        if sigma2 is None:  # of data without noise
            square = max(square, SINGULAR * float(yy), NO_NOISE)
        noise = square / free if sigma2 is None else sigma2
        deviance = free * np.log(2 * np.pi * noise) + square / noise + ld
        deviance += np.log(safe).sum() * restricted
        spread = (vectors * (sound / safe * restricted)) @ vectors.T
        known = Known((vectors @ (slopes / safe))[None], spread[None])
        open_ = vectors[:, ~sound]
        return cls(known, float(noise), float(deviance), open_, square, float(free))


@dataclass(frozen=True)
class Tree:
    """What users say, and the levels above them.

    Parameters
    ----------
    users : their A, b, yy.
    levels : from the users up.
    counts : records of each user.
    sigma2 : of the noise, if it is known: 1 for losses that are log likelihoods. None: the best.
    restricted : the restricted likelihood; else the likelihood as it is, at the best wbar.
    """

    users: Sums
    levels: tuple[Level, ...]
    counts: Floats
    sigma2: float | None = None
    restricted: bool = True

    def __post_init__(self) -> None:
        d = self.users.b.shape[1]
        if self.sigma2 is None and self.records <= d:
            raise ModelError(
                f"variances: {self.records:.0f} records for {d} coordinates; more records are "
                "needed."
            )

    @property
    def records(self) -> float:
        """How many there are."""
        return float(self.counts.sum())

    def integrated(self, roots: Sequence[Floats], sigma2: float | None = None) -> Integrated:
        """All integrated out, each level with its roots L (g, d, r)."""
        below, passed = self.users, []
        for level, root in zip(self.levels, roots, strict=True):
            passed.append(Absorbed.of(below, root[level.group]))
            below = passed[-1].summed(level)
        noise = self.sigma2 if sigma2 is None else sigma2
        middle = Middle.of(below, self.records, noise, self.restricted)
        return Integrated(self.levels, passed, middle)


@dataclass(frozen=True)
class Integrated:
    """A tree with everything integrated out.

    Parameters
    ----------
    levels : from the users up.
    passed : what came of each.
    middle : wbar, sigma^2 and the deviance.
    """

    levels: tuple[Level, ...]
    passed: list[Absorbed]
    middle: Middle

    def known(self) -> list[Known]:
        """Of the units of each level, the users first; wbar is last."""
        found = [self.middle.known]
        for level, own in zip(self.levels[::-1], self.passed[::-1], strict=True):
            found.append(own.own(found[-1].of(level)))
        return found[::-1]

    def derivatives(self) -> list[Derivative]:
        """How the deviance changes with D, for each level."""
        known = self.known()
        return [
            Derivative.of(level, own.said, above.of(level), self.middle.sigma2)
            for level, own, above in zip(self.levels, self.passed, known[1:], strict=True)
        ]


@dataclass(frozen=True)
class Derivative:
    """How the deviance changes with a level's covariances: with dD of a group by tr(G dD).

    G is the sum over its units of Q - s s'/sigma^2, with Q = P - P C P and s = q - P m: C and m are
    the covariance and mean of the unit's centre.

    Parameters
    ----------
    q, s : of each unit (n, d, d), (n, d).
    group : of each (n,).
    sigma2 : of the noise.
    """

    q: Floats
    s: Floats
    group: Ints
    sigma2: float

    @classmethod
    def of(cls, level: Level, said: Sums, centre: Known, sigma2: float) -> Derivative:
        """From what units say of their centres, and what is known of these."""
        q = said.a - said.a @ centre.covariance @ said.a
        return cls(q, said.b - _times(said.a, centre.mean), level.group, sigma2)

    def weights(self, groups: int) -> Floats:
        """Sums of Q (g, d, d)."""
        return by_cluster(self.q, self.group, groups)

    def slopes(self, groups: int) -> Floats:
        """G (g, d, d)."""
        rows = [self.s[self.group == g] for g in range(groups)]
        return self.weights(groups) - np.stack([s.T @ s for s in rows]) / self.sigma2

    def pairs(self, groups: int, varies: Ints) -> Floats:
        """Sums of Q_ab Q_cd (g, r, r, r, r): the curvature on average is tr(Q dD Q dD)."""
        inner = self.q[:, varies[:, None], varies]
        rows = [inner[self.group == g].reshape(-1, len(varies) ** 2) for g in range(groups)]
        return np.stack([q.T @ q for q in rows]).reshape(groups, *4 * (len(varies),))

    def squares(self, groups: int, varies: Ints) -> Floats:
        """Sums of Q_ab^2 (g, r, r): the same for dD that are diagonal."""
        return by_cluster(np.square(self.q[:, varies[:, None], varies]), self.group, groups)


def _times(matrices: Floats, vectors: Floats) -> Floats:
    return np.asarray((matrices @ vectors[..., None])[..., 0])
