"""Intervals of variances and correlations: by the likelihood's profile, as lme4's `confint` has it.

The profile of a number at a value is the deviance (-2 log likelihood, not the restricted one) at
the best of all others. The interval of 95% has the values where it is less than `CUTOFF` above its
least. A variance that may as well be 0 has one that begins there; a correlation's may end at 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from corsage.core.arrays import Floats
from corsage.solvers.known_clusters.tree import Tree
from corsage.solvers.known_clusters.variances.constraints import (
    Constraint,
    Correlation,
    Deviation,
    Noise,
)
from corsage.solvers.known_clusters.variances.scoring import Point, Scoring, stepped
from corsage.solvers.known_clusters.variances.shapes import FULL, Shape

CUTOFF = 3.841458820694124
"""Of chi^2 with one degree of freedom: 95%."""
NEAR_CUTOFF = 1e-4
"""An end is found when the deviance is that close to the cutoff."""
PROFILE_GAIN = 1e-7
"""A step that would gain less is not taken."""
STUCK_GAIN = 1e-2
"""A search that ends where a step would still gain more has found nothing."""
PROFILE_STEPS, PROFILE_TRIES = 100, 25
FURTHEST = 14.0
"""log of how many times an estimate an end may be; with less it is 0."""
UNKNOWN_END = 3.0
"""log sigma less this is tried first for the upper end of a variance of 0."""
LOWER = 1e-3
"""A profile that falls this far below the likeliest has no interval."""
SINGULAR_ROOT, LIFT = 1e-6, 1e-3
"""A root that is 0 in some direction is lifted before a search: no slope leads away from there."""
JUMP = 1e-6
"""Share of the way to an end that is no distance: where a profile rises over less, it jumps."""
LEVEL_RISE = 0.1
"""A rise of the deviance's root below which its slope says nothing of where it ends."""
WIDEST_LOG = 600.0
"""log sigma^2 beyond which there are no numbers."""
DIFFERENCE = 1e-5
"""Of numbers, for the curvature of the restricted likelihood."""
UNTOLD_CURVATURE, OPEN_CHANGE = 1e-4, 1e-3
"""A direction with less curvature than this share of the largest is not told by the data; and the
change of a number's log along it that leaves the number open."""


@dataclass(frozen=True)
class Interval:
    """From where to where a number is likely, 95%.

    `low_open`, `high_open`: it ends with what is possible, 0 or a correlation of 1.
    """

    low: float
    high: float
    low_open: bool = False
    high_open: bool = False


@dataclass(frozen=True)
class Spot:
    """Numbers z, and what comes of them."""

    z: Floats
    point: Point

    @property
    def deviance(self) -> float:
        """-2 log likelihood."""
        return self.point.deviance


class Surface:
    """The deviance as a function of the numbers of all roots and of log sigma^2."""

    def __init__(self, tree: Tree, shapes: Sequence[Shape]) -> None:
        self.search = Scoring(tree, shapes)

    def at(self, z: Floats) -> Spot | None:
        """The deviance there; None where no numbers can be told from larger ones."""
        x = self.search.apart(z[:-1])
        if not (np.abs(z[-1]) < WIDEST_LOG and self.search.within(x)):
            return None
        roots = self.search.roots(x)
        return Spot(z, Point(x, self.search.tree.integrated(roots, float(np.exp(z[-1])))))

    def local(self, now: Spot) -> tuple[Floats, Floats]:
        """Its slope, and its curvature on average."""
        slope, curvature, total = self.search.parts(now.point)
        middle = now.point.found.middle
        last = middle.free - middle.square / middle.sigma2
        corner = np.array([[middle.free]])
        whole = np.block([[curvature, total[:, None]], [total[None], corner]])
        return np.append(slope, last), whole

    def lifted(self, z: Floats) -> Floats:
        """The same numbers, but no root is 0 in any direction."""
        x = self.search.apart(z[:-1])
        own = [lifted(shape, part) for shape, part in zip(self.search.shapes, x, strict=True)]
        return np.append(np.concatenate(own), z[-1])


class Profile:
    """The profile of one number: the least deviance at each of its values.

    Parameters
    ----------
    tree : with the likelihood that is not restricted.
    constraint : what is held.
    best : the likeliest numbers z, and their deviance.
    """

    def __init__(self, tree: Tree, constraint: Constraint, best: tuple[Floats, float]) -> None:
        self.constraint, (self.start, self.least) = constraint, best
        self.surface = Surface(tree, constraint.shapes)

    def interval(self) -> Interval | None:
        """Both ends; None if one is beyond what rounding lets one see, or the profile falls below
        what was taken for the likeliest."""
        if self.surface.at(self.start) is None:
            return None
        low, high = self.end(-1.0), self.end(1.0)
        if low is None or high is None:
            return None
        told = self.constraint.told
        return Interval(told(low), told(high), not np.isfinite(low), not np.isfinite(high))

    def end(self, sign: float) -> float | None:
        """The value on one side at which the deviance is `CUTOFF` above the least; or infinite.

        Newton's steps on the root of what it is above the least, which is nearly linear.
        """
        u, y = self.constraint.value(self.start), self.start
        if not np.isfinite(u) and sign < 0:
            return -np.inf
        if np.isfinite(u):
            ends, step = [u, np.inf * sign], self.reach(u)
            guess = u + sign * step
        else:
            ends, step = [-np.inf, np.inf], 1.0
            guess = float(y[-1]) / 2 - UNKNOWN_END
        low, high = self.constraint.bounds(self.start)
        limit = max(u - FURTHEST, low) if sign < 0 else min(guess + FURTHEST, high)
        for _ in range(PROFILE_TRIES):
            guess = sign * min(sign * guess, sign * limit)
            found = self.best(y, guess)
            if found is None:
                return None
            spot, rise = found
            gap, y = spot.deviance - self.least, spot.z
            if gap < -LOWER:
                return None
            if abs(gap - CUTOFF) < NEAR_CUTOFF:
                return guess
            if gap < CUTOFF and guess == limit:
                return sign * np.inf
            ends[int(gap > CUTOFF)] = guess
            if jumps(u, ends):
                break
            guess = following(guess, gap, sign * rise, sign, step, ends)
        return None

    def reach(self, u: float) -> float:
        """About how far away an end is, by the curvature at the likeliest."""
        spot = self.surface.at(self.start)
        assert spot is not None
        _, curvature = self.surface.local(spot)
        free, along = self.constraint.slopes(self.start, u)
        inner = free.T @ curvature @ along
        held = np.linalg.pinv(free.T @ curvature @ free, hermitian=True)
        rest = along @ curvature @ along - inner @ held @ inner
        return float(np.sqrt(2 * CUTOFF / max(float(rest), 2.0)))

    def best(self, y: Floats, u: float) -> tuple[Spot, float] | None:
        """The least deviance at a value, and how it rises with it; None where it is not found."""
        now = self.surface.at(self.constraint.place(self.surface.lifted(y), u))
        if now is None:
            return None
        damping = 1e-3
        for _ in range(PROFILE_STEPS):
            free, along = self.constraint.slopes(now.z, u)
            slope, curvature = self.surface.local(now)
            after, damping, gain = stepped(
                lambda move, z=now.z: self.surface.at(self.constraint.place(z + move, u)),  # type: ignore[misc]
                now, free.T @ slope, free.T @ curvature @ free, damping, PROFILE_GAIN,
                self.surface.search.rounding(now.point),
            )  # fmt: skip
            if after is None:
                break
            now = after
        return (now, float(slope @ along)) if gain < STUCK_GAIN else None


def jumps(u: float, ends: Sequence[float]) -> bool:
    """True if a profile from u on is below the cutoff and above it within no distance at all."""
    inside, outside = ends
    width = abs(outside - u) if np.isfinite(u) else 1.0
    return bool(abs(outside - inside) < JUMP * width < np.inf)


def following(
    u: float, gap: float, rise: float, sign: float, step: float, ends: list[float]
) -> float:
    """The next value to look at, given the deviance, its rise outwards, and what is known."""
    inside, outside = ends
    above = float(np.sqrt(max(gap, 0.0)))
    told = rise > 0 and above > LEVEL_RISE
    wanted = (np.sqrt(CUTOFF) - above) * 2 * above / rise if told else np.inf
    if np.isfinite(outside):
        near = sign * (outside - u) if gap < CUTOFF else sign * (inside - u)
        sound = np.isfinite(wanted) and 0 < wanted / near < 1 if near else False
        middle = (max(sign * inside, sign * outside - 2.0) + sign * outside) / 2
        return u + sign * wanted if sound else sign * middle
    return u + sign * min(wanted, 4 * step)


def lifted(shape: Shape, x: Floats) -> Floats:
    """A shape's numbers, so that its covariance has no direction in which it is 0."""
    if not shape.size:
        return x
    root = np.tensordot(x[: shape.inner], shape.basis, 1)
    own = (root @ root.T)[np.ix_(shape.varies, shape.varies)]
    values = np.linalg.eigvalsh(own)
    if values[0] > SINGULAR_ROOT * values[-1] > 0 and values[-1] > SINGULAR_ROOT * LIFT:
        return x
    inner = np.zeros((shape.d, shape.d))
    floor = LIFT * max(float(values[-1]), LIFT)
    inner[np.ix_(shape.varies, shape.varies)] = own + floor * np.eye(len(own))
    half: Floats = np.linalg.cholesky(inner + np.diag(np.diag(inner) == 0.0)).astype(np.float64)
    numbers = shape.numbers(half * (np.diag(inner) > 0)[:, None])
    return np.concatenate([numbers[: shape.inner], x[shape.inner :]])


# Of a fit.


def likeliest(tree: Tree, shapes: Sequence[Shape], x: Sequence[Floats]) -> tuple[Floats, float]:
    """The numbers z of the tree's greatest likelihood, from those x near it, and its deviance."""
    near = [lifted(shape, own) for shape, own in zip(shapes, x, strict=True)]
    found = Scoring(tree, shapes).fitted(near)
    return np.append(np.concatenate(found.x), np.log(found.found.middle.sigma2)), found.deviance


def turned(shape: Shape, rows: Sequence[Floats]) -> Shape:
    """The same full shape in coordinates of which these (d,) are the first."""
    some = np.stack([row[shape.varies] for row in rows])
    some = some / np.linalg.norm(some, axis=1, keepdims=True)
    rest = np.linalg.svd(some)[2][len(some) :]
    return replace(shape, turn=np.concatenate([some, rest]))


class Intervals:
    """Intervals of what a fit found, one number after the other.

    By the profile of the likelihood, or of the restricted one.
    """

    def __init__(
        self, tree: Tree, shapes: Sequence[Shape], x: Sequence[Floats], restricted: bool = False
    ) -> None:
        self.tree, self.shapes = replace(tree, restricted=restricted), tuple(shapes)
        self.z, self.deviance = likeliest(self.tree, shapes, x)

    def noise(self) -> Interval | None:
        """Of sigma^2."""
        return self._of(Noise(self.shapes), self.z)

    def variance(self, level: int, t: Floats) -> Interval | None:
        """Of the variance of t'theta at a level."""
        shapes, z = self._turned(level, [t])
        return self._of(Deviation(shapes, level, t), z)

    def correlation(self, level: int, one: Floats, other: Floats) -> Interval | None:
        """Of that of two coefficients at a level with a full covariance; None: one is 0."""
        shapes, z = self._turned(level, [one, other])
        if not all(np.isfinite(Deviation(shapes, level, t).value(z)) for t in (one, other)):
            return None
        return self._of(Correlation(shapes, level), z)

    def _of(self, constraint: Constraint, z: Floats) -> Interval | None:
        return Profile(self.tree, constraint, (z, self.deviance)).interval()

    def _turned(self, level: int, rows: Sequence[Floats]) -> tuple[tuple[Shape, ...], Floats]:
        """Shapes and numbers z with this level's, if it is full, in such coordinates."""
        old = self.shapes[level]
        if old.kind != FULL:
            return self.shapes, self.z
        new = turned(old, rows)
        start = sum(shape.size for shape in self.shapes[:level])
        place = slice(start, start + old.size)
        z = self.z.copy()
        inner = np.tensordot(z[place][: old.inner], old.basis, 1)
        z[place] = np.concatenate([new.numbers(inner)[: new.inner], z[place][old.inner :]])
        return (*self.shapes[:level], new, *self.shapes[level + 1 :]), z


class Errors:
    """Standard errors of variances: from the curvature of the restricted likelihood, as it is."""

    def __init__(self, tree: Tree, shapes: Sequence[Shape], x: Sequence[Floats], sigma2: float):
        self.shapes = tuple(shapes)
        self.z = np.append(np.concatenate(list(x)), np.log(sigma2))
        self.surface = Surface(tree, shapes)
        self.flat = np.zeros((len(self.z), 0))
        self.covariance = self._covariance()

    def noise(self) -> float | None:
        """Of sigma^2."""
        return self._of(float(np.exp(self.z[-1])), np.eye(len(self.z))[-1])

    def variance(self, level: int, t: Floats) -> float | None:
        """Of the variance of t'theta at a level; None of one that is 0."""
        number = Deviation(self.shapes, level, t)
        u = number.value(self.z)
        return self._of(float(np.exp(2 * u)), 2 * number.slope(self.z)) if np.isfinite(u) else None

    def _of(self, value: float, slope: Floats) -> float | None:
        """Of a number whose log has this slope; None if the data leave it open."""
        if self.covariance is None or np.abs(slope @ self.flat).max(initial=0.0) > OPEN_CHANGE:
            return None
        return float(value * np.sqrt(max(float(slope @ self.covariance @ slope), 0.0)))

    def _covariance(self) -> Floats | None:
        """Of all numbers; None where the likelihood is not at a top, or users differ too much."""
        steps = DIFFERENCE * np.diag(np.maximum(np.abs(self.z), DIFFERENCE))
        sides = [(self.surface.at(self.z + h), self.surface.at(self.z - h)) for h in steps]
        rows = [self._slope(up) - self._slope(down) for up, down in sides if up and down]
        if len(rows) < len(sides):
            return None
        hessian = np.stack(rows) / (2 * np.diag(steps)[:, None])
        scale = 1 / np.sqrt(np.maximum(np.diag(hessian), 1e-300))
        inner = scale[:, None] * (hessian + hessian.T) / 2 * scale
        values, vectors = np.linalg.eigh(inner)
        if not np.isfinite(values).all() or values[0] < -np.sqrt(UNTOLD_CURVATURE):
            return None
        told = values > UNTOLD_CURVATURE
        own = scale[:, None] * vectors[:, ~told]  # of the numbers themselves
        self.flat = own / np.maximum(np.linalg.norm(own, axis=0), 1e-300)
        parts = vectors[:, told] / np.sqrt(values[told])
        return np.asarray(2 * scale[:, None] * (parts @ parts.T) * scale)

    def _slope(self, spot: Spot) -> Floats:
        return self.surface.local(spot)[0]
