"""The most likely covariances of all levels: Fisher's scoring, with the boundary inside.

A step solves H dx = -g, where g is the slope of the deviance and H its curvature on average (units
of a level taken as independent, levels too) with what the roots' own curvature adds. It is damped
as Levenberg and Marquardt do until the deviance falls. Where the slope changed otherwise than H
says, H is corrected by the last moves (BFGS): without, searches creep, or swing around the top. It
ends when the step would gain less than `GAIN`: then each number is within some 1e-7 of its own
standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeVar

import numpy as np

from corsage.core.arrays import Floats
from corsage.solvers.known_clusters.absorbed import Derivative
from corsage.solvers.known_clusters.tree import Integrated, Tree
from corsage.solvers.known_clusters.variances.shapes import FULL, Shape

GAIN = 1e-13
"""A step that would make the deviance less by less than this is not taken any more."""
BLIND = 1e-6
"""A search that ends where a step would gain less has converged."""
DEVIANCE_ROUNDING = 64 * float(np.finfo(np.float64).eps)
"""A sum of squares less what is explained of it has an error of less than this share of it."""
TOLD = 1e-10
"""Slopes tell this gain from none, whatever rounding leaves of a large deviance."""
NEAR_GAIN = 100.0
"""Below this gain levels above very many users are settled: a deviance's fall is no way off."""
SCORING_STEPS = 200
NO_DAMPING, MOST_DAMPING = 1e-9, 1e12
"""Less damping is none, and with more no step is left."""
WIDEST_ROOT = 1e4
"""Users that differ a hundred million times as much as records: rounding hides what is beyond."""
LAST_MOVES = 5
"""So many last moves correct the curvature."""
ALIKE = 1e-3
"""A slope that changes by a smaller share of what the curvature says corrects nothing."""
MOST_FOLLOWED = 0.9
"""The share of the curvature in any direction that may be that of sigma^2."""
START: Floats = np.geomspace(1e-4, 1e2, 13)
"""Variances over sigma^2 of all levels where the search begins: the best of these."""
FACTORED = 40
"""With more numbers than these a factor is faster than eigenvalues."""
LEAST_BEND = 1e-9
"""Directions with less curvature, in numbers of equal curvature, are none."""


@dataclass(frozen=True)
class Point:
    """A place of the search: numbers x of all levels, and what comes of them."""

    x: list[Floats]
    found: Integrated

    @property
    def deviance(self) -> float:
        """-2 log restricted likelihood."""
        return self.found.middle.deviance


@dataclass(frozen=True)
class Fitted:
    """The most likely numbers.

    Parameters
    ----------
    shapes, x : of each level.
    found : the tree at them.
    gain : what one more step would gain: the size of the slope, in units of the deviance.
    first : the same where it began.
    rounding : of the deviance.
    """

    shapes: tuple[Shape, ...]
    x: list[Floats]
    found: Integrated
    gain: float
    first: float
    rounding: float = 0.0

    @property
    def converged(self) -> bool:
        """True if the slope is 0, as far as rounding lets one see."""
        return self.gain < max(BLIND, self.rounding)

    @property
    def roots(self) -> list[Floats]:
        """L of each level (g, d, r)."""
        return [shape.roots(x) for shape, x in zip(self.shapes, self.x, strict=True)]

    @property
    def covariances(self) -> list[Floats]:
        """D of each level (g, d, d), over sigma^2."""
        return [root @ root.mT for root in self.roots]

    @property
    def deviance(self) -> float:
        """-2 log restricted likelihood."""
        return self.found.middle.deviance


class Scoring:
    """The search for one tree and the shapes of its levels."""

    def __init__(self, tree: Tree, shapes: Sequence[Shape]) -> None:
        self.tree, self.shapes = tree, tuple(shapes)
        self.ends = np.cumsum([shape.size for shape in shapes])[:-1]

    def roots(self, x: list[Floats]) -> list[Floats]:
        """L of each level (g, d, r)."""
        return [shape.roots(own) for shape, own in zip(self.shapes, x, strict=True)]

    def at(self, x: list[Floats]) -> Point:
        """The deviance there."""
        return Point(x, self.tree.integrated(self.roots(x)))

    def tried(self, x: list[Floats]) -> Point | None:
        """The same; None where no numbers can be told from larger ones."""
        return self.at(x) if self.within(x) else None

    def within(self, x: list[Floats]) -> bool:
        """True if roots are not beyond what rounding lets one see."""
        return all(np.abs(root).max(initial=0.0) < WIDEST_ROOT for root in self.roots(x))

    def started(self) -> Point:
        """The best of equal variances."""
        d = self.tree.users.b.shape[1]
        equal = [
            [shape.numbers(np.sqrt(rho) * np.eye(d)) for shape in self.shapes] for rho in START
        ]
        return min(map(self.at, equal), key=lambda point: point.deviance)

    def fitted(
        self, x: list[Floats] | None = None, steps: int = SCORING_STEPS, enough: float = GAIN
    ) -> Fitted:
        """From `x`, or the best of equal variances, to the most likely.

        Until a step would gain less than `enough`, or rounding hides what it gains and it gains no
        less than the one before.
        """
        now = self.started() if x is None else self.at(x)
        damping, gain, first = 1e-3, np.inf, np.inf
        path = list[tuple[Floats, Floats]]()
        for number in range(steps):
            slope, curvature = self.local(now)
            path = [*path[-LAST_MOVES:], (np.concatenate(now.x), slope)]
            curvature, before = corrected(curvature, path), gain
            after, damping, gain = self.step(now, slope, curvature, damping)
            first = gain if number == 0 else first
            if after is None or before <= gain < self.rounding(now):
                break
            now = after if gain > NEAR_GAIN else self.settled_above(after)
            if gain < enough:
                break
        return Fitted(self.shapes, now.x, now.found, gain, first, self.rounding(now))

    def rounding(self, now: Point) -> float:
        """Rounding of the deviance: of what is left of all labels, over sigma^2, and of itself."""
        square = float(self.tree.users.yy.sum()) / now.found.middle.sigma2
        return DEVIANCE_ROUNDING * (abs(now.deviance) + square)

    def settled_above(self, now: Point) -> Point:
        """Below very many users' covariances the best ones of the levels above them.

        Fisher's scoring ends slowly there, as units are few: their curvature is not that on
        average. What the users say of their centres is added up, so such steps cost nothing
        beside one of all levels, for which everybody is looked at again.
        """
        users = now.found.passed[0]
        if len(self.shapes) == 1 or not users.many:
            return now
        found = Scoring(self.tree.above(now.found), self.shapes[1:]).fitted(now.x[1:])
        passed, middle = [users, *found.found.passed], found.found.middle
        return Point([now.x[0], *found.x], Integrated(passed, middle))

    def step(
        self, now: Point, slope: Floats, curvature: Floats, damping: float
    ) -> tuple[Point | None, float, float]:
        """The next point, the damping that did it, and the gain that was expected without."""
        here = np.concatenate(now.x)
        rounding = float(np.finfo(np.float64).eps) * abs(now.deviance)
        enough = max(GAIN, min(rounding, TOLD))
        return stepped(
            lambda move: self.tried(self.apart(here + move)),
            now, slope, curvature, damping, enough, self.rounding(now),
        )  # fmt: skip

    def apart(self, x: Floats) -> list[Floats]:
        """The numbers of each level."""
        return np.split(x, self.ends)

    def local(self, now: Point) -> tuple[Floats, Floats]:
        """g and H of the deviance in all numbers."""
        slope, curvature, total = self.parts(now)
        if self.tree.sigma2 is None:  # sigma^2 follows the scale of all variances
            curvature = curvature - followed(curvature, total, self.tree.records)
        return slope, curvature

    def parts(self, now: Point) -> tuple[Floats, Floats, Floats]:
        """g, H and tr(Q dD), which is the curvature with log sigma^2, at this sigma^2."""
        derivatives = now.found.derivatives()
        parts = [
            local(shape, x, derivative)
            for shape, x, derivative in zip(self.shapes, now.x, derivatives, strict=True)
        ]
        slope = np.concatenate([part[0] for part in parts])
        total = np.concatenate([part[2] for part in parts])
        curvature = np.zeros((len(slope), len(slope)))
        for (_, own, _), end in zip(parts, [*self.ends, len(slope)], strict=True):
            curvature[end - len(own) : end, end - len(own) : end] = own
        return slope, curvature, total


class HasDeviance(Protocol):
    """A place of a search."""

    @property
    def deviance(self) -> float:
        """The function that is minimised."""


P = TypeVar("P", bound=HasDeviance)


def stepped(
    tried: Callable[[Floats], P | None],
    now: P,
    slope: Floats,
    curvature: Floats,
    damping: float,
    enough: float,
    rounding: float,
) -> tuple[P | None, float, float]:
    """The next point, the damping that did it, and the gain that was expected without.

    `tried` gives the point that a move leads to. None: there is less than `enough` to gain. Where
    `rounding` of the deviance hides the gain a step is trusted that raises it by no more.
    """
    move, gain = solved(slope, curvature, 0.0)
    if gain < enough:
        return None, damping, gain
    while damping < MOST_DAMPING:
        move, expected = solved(slope, curvature, damping)
        after = tried(move)
        fall = now.deviance - after.deviance if after else -np.inf
        if after and (fall > 0.1 * expected or (gain < rounding and fall > -rounding)):
            eased = damping / (10 if fall > 0.5 * expected else 1)
            return after, max(eased, NO_DAMPING), gain
        damping *= 10
    return None, damping, gain


def local(shape: Shape, x: Floats, derivative: Derivative) -> tuple[Floats, Floats, Floats]:
    """g, H and tr(Q dD) of one level.

    With J = dL/dx: dD = J L' + L J', g = 2 <G L, J>, H = tr(Q dD Q dD) + 2 <G_+ J, J>, where G_+ is
    what of G is positive: at a variance of 0 it is all the curvature that there is.
    """
    if not shape.size:
        return np.zeros(0), np.zeros((0, 0)), np.zeros(0)
    return (local_full if shape.kind == FULL else local_lines)(shape, x, derivative)


def local_full(shape: Shape, x: Floats, derivative: Derivative) -> tuple[Floats, Floats, Floats]:
    """The same of any roots."""
    roots, directions, groups = shape.roots(x), shape.directions(x), shape.groups
    half = directions @ roots.mT[None]
    moved = (half + half.mT)[:, :, shape.varies[:, None], shape.varies]  # (size, g, r, r)
    weight, gradient, pairs = derivative.sums(shape.varies, pairs=True)
    values, vectors = np.linalg.eigh(gradient)
    positive = (vectors * np.maximum(values, 0.0)[:, None]) @ vectors.mT
    pulled = 2 * np.tensordot(positive[None] @ directions, directions, ((1, 2, 3), (1, 2, 3)))
    inner = np.ix_(np.arange(groups), shape.varies, shape.varies)
    slope = np.tensordot(moved, gradient[inner], 3)
    total = np.tensordot(moved, weight[inner], 3)
    return slope, even(averaged(pairs, moved) + pulled), total


def local_lines(shape: Shape, x: Floats, derivative: Derivative) -> tuple[Floats, Floats, Floats]:
    """The same of roots that are diagonal, and so their directions: it takes diagonals and Q_ab^2.

    Directions as whole matrices would take d^4 products.
    """
    lines, directions = shape.lines(x)
    moved, varies = 2 * directions * lines, shape.varies  # (size, g, r)
    weight, gradient, squares = derivative.sums(varies, pairs=False)
    values, vectors = np.linalg.eigh(gradient)
    positive = (np.square(vectors) @ np.maximum(values, 0.0)[..., None])[:, varies, 0]
    pulled = 2 * np.tensordot(positive * directions, directions, ((1, 2), (1, 2)))
    slope = np.tensordot(moved, np.diagonal(gradient, 0, 1, 2)[:, varies], 2)
    total = np.tensordot(moved, np.diagonal(weight, 0, 1, 2)[:, varies], 2)
    half = moved.transpose(1, 0, 2) @ squares
    return slope, even(np.tensordot(half, moved, ((0, 2), (1, 2))) + pulled), total


def averaged(pairs: Floats, moved: Floats) -> Floats:
    """tr(Q dD Q dD) of all pairs of directions (size, g, r, r)."""
    g, r, *_ = pairs.shape
    flat = pairs.transpose(0, 1, 4, 2, 3).reshape(g, r * r, r * r)  # (a, d), (b, c)
    half = flat @ moved.reshape(-1, g, r * r).transpose(1, 2, 0)
    turned = moved.mT.reshape(-1, g, r * r)
    return np.tensordot(half, turned, ((0, 1), (1, 2)))


def corrected(curvature: Floats, path: Sequence[tuple[Floats, Floats]]) -> Floats:
    """A curvature with which slopes change along a path's moves as they did (BFGS)."""
    for (place, slope), (after, risen) in pairwise(path):
        move, rise = after - place, risen - slope
        before = curvature @ move
        expected, found = float(move @ before), float(move @ rise)
        if 0 < ALIKE * expected < found < expected / ALIKE:
            curvature = curvature + np.outer(rise, rise) / found
            curvature -= np.outer(before, before) / expected
    return curvature


def followed(curvature: Floats, total: Floats, records: float) -> Floats:
    """The part of the curvature that sigma^2 takes away by following the scale of all variances.

    Never all of it: what levels have in common is not in the curvature, but it is in `total`.
    """
    share = 2 * solved(total, curvature, 0.0)[1] / records
    return np.outer(total, total) / records * min(1.0, MOST_FOLLOWED / max(share, 1e-300))


def even(matrix: Floats) -> Floats:
    """Symmetric but for rounding, and now without."""
    return (matrix + matrix.T) / 2


def solved(slope: Floats, curvature: Floats, damping: float) -> tuple[Floats, float]:
    """The damped step, and what it would gain by the quadratic that it is of."""
    size = np.maximum(np.diag(curvature), 0.0)
    floor = 1e-14 * max(float(size.max(initial=0.0)), 1e-300)
    raised = curvature + np.diag(damping * size + floor)
    scale = 1 / np.sqrt(np.diag(raised).clip(floor))
    alike = scale[:, None] * raised * scale
    if len(slope) > FACTORED and (move := factored(alike, scale * slope)) is not None:
        return -scale * move, float(move @ (scale * slope) / 2)
    values, vectors = np.linalg.eigh(alike)
    told = values > LEAST_BEND  # sizes of groups have a direction in which nothing changes
    along = np.where(told, vectors.T @ (scale * slope), 0.0)
    safe = np.where(told, values, 1.0)
    return -scale * (vectors @ (along / safe)), float(np.sum(along**2 / safe) / 2)


def factored(matrix: Floats, slope: Floats) -> Floats | None:
    """Its inverse times a slope, by a factor; None: some direction is flat."""
    from scipy.linalg import cho_solve

    try:
        np.linalg.cholesky(matrix - LEAST_BEND * np.eye(len(slope)))
        factor = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return None
    return np.asarray(cho_solve((factor, True), slope, check_finite=False))
