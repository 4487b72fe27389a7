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
from dataclasses import dataclass, replace

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.core.errors import ModelError
from corsage.solvers.known_clusters.absorbed import Absorbed, Derivative, Known, Level
from corsage.solvers.known_clusters.blocks import Sums, Thin
from corsage.solvers.known_clusters.likelihood import NO_NOISE, SINGULAR, cleaned
from corsage.solvers.known_clusters.mixed_model import by_cluster


def levels_of(cluster: Ints, k: int) -> tuple[Level, ...]:
    """Users in k clusters; a single cluster is the middle itself."""
    users = Level.plain(cluster, k)
    return (users,) if k == 1 else (users, Level.plain(np.zeros(k, np.int64), 1))


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
        open_ = cleaned(vectors[:, ~sound])
        return cls(known, float(noise), float(deviance), open_, square, float(free))


@dataclass(frozen=True)
class Tree:
    """Users' sums, and the levels above them.

    Parameters
    ----------
    users : their A, b, yy.
    levels : from the users up.
    counts : records of each user.
    sigma2 : of the noise, if it is known: 1 for losses that are log likelihoods. None: the best.
    restricted : the restricted likelihood; else the likelihood as it is, at the best wbar.
    thin : of users with few records for their coefficients the rows that say the same (`thinned`).
    """

    users: Sums
    levels: tuple[Level, ...]
    counts: Floats
    sigma2: float | None = None
    restricted: bool = True
    thin: Thin | None = None

    def __post_init__(self) -> None:
        d = self.users.b.shape[1]
        if self.sigma2 is None and self.records <= d:
            raise ModelError(
                f"variances: {self.records:.0f} rows for {d} coefficients leave none to tell them "
                "by; give more rows, or fewer columns."
            )

    @property
    def records(self) -> float:
        """The number of records."""
        return float(self.counts.sum())

    def integrated(self, roots: Sequence[Floats], sigma2: float | None = None) -> Integrated:
        """All integrated out, each level with its roots L (g, d, r)."""
        below, passed = self.users, list[Absorbed]()
        for level, root in zip(self.levels, roots, strict=True):
            passed.append(Absorbed(below, level, root, None if passed else self.thin))
            below = passed[-1].summed()
        noise = self.sigma2 if sigma2 is None else sigma2
        middle = Middle.of(below, self.records, noise, self.restricted)
        return Integrated(passed, middle)

    def above(self, found: Integrated) -> Tree:
        """The tree without its first level: its units say what theirs below them do, as found."""
        first = self.levels[0]
        counts = by_cluster(self.counts, first.parent, first.above)
        users, levels = found.passed[1].below, self.levels[1:]
        return replace(self, users=users, levels=levels, counts=counts, thin=None)

    def thinned(self) -> Tree:
        """The same tree, worked through by rows where users have few records."""
        return replace(self, thin=Thin.of(self.users))


@dataclass(frozen=True)
class Integrated:
    """A tree with everything integrated out.

    Parameters
    ----------
    passed : the levels, from the users up.
    middle : wbar, sigma^2 and the deviance.
    """

    passed: list[Absorbed]
    middle: Middle

    def known(self) -> list[Known]:
        """Of the units of each level, the users first; wbar is last."""
        above = self.known_above()
        users = self.passed[0]
        return [users.own(above[0].of(users.level)), *above]

    def known_above(self) -> list[Known]:
        """The same but for the users, of whom there are many."""
        found = [self.middle.known]
        for units in self.passed[:0:-1]:
            found.append(units.own(found[-1].of(units.level)))
        return found[::-1]

    def derivatives(self) -> list[Derivative]:
        """The change of the deviance with D, for each level."""
        pairs = zip(self.passed, self.known_above(), strict=True)
        return [units.derivative(above, self.middle.sigma2) for units, above in pairs]
