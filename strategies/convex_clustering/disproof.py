"""Answers that no convex loss f >= 0 with curvature at most L can give.

Values and gradients at points a, b are those of such a function if and only if

    f_b >= f_a + <g_a, b - a> + |g_b - g_a|^2 / (2 L)

both ways round (Taylor, Hendrickx, Glineur 2017, Theorem 4). Without the values their sum is left,
<g_b - g_a, b - a> >= |g_b - g_a|^2 / L, and of a proximal step x of p the gradient is known to be
kappa (p - x). What a user says of any point is held against all that it said before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from corsage.core.arrays import Arrays, Bools, Floats, Ints
from corsage.core.messages.replies import Replies
from corsage.solvers.convex_clustering.exact.numbers_given import LARGEST_NUMBER
from corsage.strategies.rounds.means.user_rows import places

if TYPE_CHECKING:
    from corsage.solvers.convex_clustering.expansions import Expansion, Probe

ROUNDED_BY = {"float64": 1e-5, "float32": 1e-2}
"""Of the terms of an inequality what may be rounding, and users' own tolerance."""
KEPT_POINTS = 64
"""Points of a user that are remembered, the last ones, of each fold."""
NEGATIVE = "its loss is negative"
BEYOND_SQUARES = "its numbers are too large to be squared"
WRONG_HESSIAN = "its Hessian is not between 0 and its own bound"
CONTRARY = "its values and slopes contradict each other"
LOW = "its minimum is above values that it gave"
TOO_LONG = "its step is longer than its own slope allows"


@dataclass(frozen=True)
class Points:
    """Points x (N, K, d) of all users, with f (N, K) and g (N, K, d); NaN is not known."""

    x: Floats
    f: Floats
    g: Floats

    @classmethod
    def one(cls, x: Floats, f: Floats | None = None, g: Floats | None = None) -> Points:
        """One point of each user."""
        f = np.full(len(x), np.nan) if f is None else f
        g = np.full(x.shape, np.nan) if g is None else g
        return cls(x[:, None], f[:, None], g[:, None])

    def with_points(self, more: Points) -> Points:
        """The last points of both."""
        pairs = ((getattr(self, each.name), getattr(more, each.name)) for each in fields(self))
        return Points(*(np.concatenate(pair, 1)[:, -KEPT_POINTS:] for pair in pairs))

    def of(self, rows: Ints) -> Points:
        """Those of some users."""
        return Points(self.x[rows], self.f[rows], self.g[rows])

    def spread(self, rows: Ints, n: int) -> Points:
        """The same among n users, of whom the others said nothing."""
        found = Points(*(np.full((n, *a.shape[1:]), np.nan) for a in (self.x, self.f, self.g)))
        found.x[rows], found.f[rows], found.g[rows] = self.x, self.f, self.g
        return found


class Disproof:
    """All that users said of their losses, and who is thereby disproved: `faults`.

    Every call is about the answers of some of the users, in the order of their rows.

    Parameters
    ----------
    precision : what users compute in.
    """

    def __init__(self, precision: str) -> None:
        self.rounding = ROUNDED_BY[precision]
        self.users: list[str] = []
        self.known: dict[Any, Points] = {}
        self.bound: dict[Any, Floats] = {}
        self.slope: Floats | None = None
        self.faults: dict[str, str] = {}

    def about(self, users: list[str]) -> None:
        """The answers to come are of these users; of others all is forgotten."""
        if users == self.users:
            return
        rows = places(self.users, users)
        if (rows < 0).any():
            self.known, self.bound, self.slope = {}, {}, None
        else:
            self.known = {fold: points.of(rows) for fold, points in self.known.items()}
            self.bound = {fold: bound[rows] for fold, bound in self.bound.items()}
            self.slope = None if self.slope is None else self.slope[rows]
        self.users = list(users)

    def hear_answers(
        self, question: str, rows: Arrays, options: Mapping[str, Any], replies: Replies
    ) -> None:
        """Answers to one of the simple questions; `rows` are what was sent to those who reply."""
        own, fold, said = places(self.users, replies.users), options.get("fold"), replies.metrics
        fold = (fold, options["fold-number"]) if fold else None
        match question if replies.users else "":
            case "facts":
                self.hear_facts(own, said["slope"], said["smoothness"])
            case "gradient":
                new = Points.one(rows["x"], said["value"], replies.rows["gradient"])
                self.hear(own, new, fold)
            case "prox":
                self.hear_step(own, rows["p"], rows["kappa"], replies.rows["x"], fold)
            case "minimise":
                slope = np.where(said["found"][:, None] > 0, -rows["slope"], np.nan)
                self.hear(own, Points.one(replies.rows["x"], g=slope), fold)
            case "slack":
                self.hear(own, Points.one(rows["x"], said["value"]), fold)
                self.hear_minimum(own, rows["v"], said["least"], said["found"] > 0, fold)
            case "held_out":
                self.blame(own, said["value"] < 0, NEGATIVE)

    def hear_facts(self, rows: Ints, slope: Floats, bound: Floats) -> None:
        """|grad f_i(0)| and L_i."""
        self.slope, self.bound[None] = (np.full(len(self.users), np.inf) for _ in range(2))
        self.slope[rows], self.bound[None][rows] = slope, bound

    def hear_expansion(self, rows: Ints, probe: Probe, found: Expansion) -> None:
        """Answers to a probe, as they came; its points are of all users."""
        fold = probe.fold and (probe.fold.purpose, probe.fold.number)
        bound = self.bound.setdefault(fold, np.full(len(self.users), np.nan))
        bound[rows] = np.where(np.isnan(bound[rows]), found.curvature, bound[rows])
        odd = (found.curvature > bound[rows] * (1 + self.rounding)) | ~(found.curvature > 0)
        self.blame(rows, odd, WRONG_HESSIAN)
        self.blame(rows, unbounded(found.hessian, bound[rows], self.rounding), WRONG_HESSIAN)
        self.blame(rows, np.nan_to_num(found.held) < 0, NEGATIVE)
        self.hear(rows, Points.one(found.y, found.value, found.gradient), fold)
        self.hear(rows, Points.one(probe.x[rows], found.at_x), fold)
        if probe.bound:
            self.hear_minimum(rows, probe.v[rows], found.least, found.found, fold)

    def hear_step(self, rows: Ints, p: Floats, kappa: Floats, x: Floats, fold: Any) -> None:
        """x = argmin f + kappa/2 |x - p|^2."""
        if self.slope is not None and fold is None:
            reach = np.linalg.norm(p, axis=1) * kappa + self.slope[rows]
            self.blame(
                rows, np.linalg.norm(x, axis=1) * kappa > (1 + self.rounding) * reach, TOO_LONG
            )
        pulled = np.where(kappa > 0, kappa, np.nan)[:, None]
        self.hear(rows, Points.one(x, g=pulled * (p - x)), fold)

    def hear_minimum(self, rows: Ints, v: Floats, least: Floats, found: Bools, fold: Any) -> None:
        """The least of f(y) + <v, y>, where there is one."""
        known, bound = self.known[fold].of(rows), self.bound_of(fold)[rows, None]
        tilt = np.einsum("nd,nkd->nk", v, known.x)
        size = np.abs(known.f) + lengths(v)[:, None] * lengths(known.x) + np.abs(least)[:, None]
        slack = self.rounding * (size + self.rounding * bound * np.square(known.x).sum(2))
        above = np.asarray((least[:, None] > known.f + tilt + slack).any(1))
        self.blame(rows, np.asarray(found & above), LOW)

    def hear(self, rows: Ints, new: Points, fold: Any) -> None:
        """Points, held against all that are known."""
        self.blame(rows, np.asarray((new.f < -np.finfo(np.float32).eps).any(1)), NEGATIVE)
        huge = np.any(
            [(np.abs(a) > LARGEST_NUMBER).any(2) for a in (new.x, new.g, new.f[..., None])], 0
        )
        self.blame(rows, huge.any(1), BEYOND_SQUARES)
        x, g = (np.where(huge[..., None], np.nan, a) for a in (new.x, new.g))
        new = Points(x, np.where(huge, np.nan, new.f), g)
        known = new.spread(rows, len(self.users))
        if fold in self.known:
            known = self.known[fold].with_points(known)
        bound = self.bound_of(fold)[rows]
        self.blame(rows, contrary(known.of(rows), new, bound, self.rounding), CONTRARY)
        self.known[fold] = known

    def bound_of(self, fold: Any) -> Floats:
        """L_i as the users said it; 0 where they have not."""
        bound = self.bound.get(fold, np.zeros(len(self.users)))
        return np.where(np.isfinite(bound), bound, 0.0)

    def blame(self, rows: Ints, bad: Bools, why: str) -> None:
        """Book whom an answer disproves; the first reason stays."""
        for row in rows[bad]:
            self.faults.setdefault(self.users[row], why)


def contrary(known: Points, new: Points, bound: Floats, rounding: float) -> Bools:
    """True for users of whom two points cannot be of one function (N,)."""
    bad = np.zeros(len(new.x), bool)
    own = bound[:, None]
    flat = np.divide(1.0, own, out=np.zeros_like(own), where=own > 0)
    most = np.where(own > 0, own, np.inf)
    for k in range(new.x.shape[1]):
        x, f, g = new.x[:, k, None], new.f[:, k, None], new.g[:, k, None]  # b, of all a
        way, rise = x - known.x, f - known.f
        ahead, back = (known.g * way).sum(2), (g * way).sum(2)
        bend = flat / 2 * np.square(g - known.g).sum(2)
        size = np.stack([f + 0 * rise, known.f, lengths(way) * lengths(known.g), back, ahead])
        reach = np.square(x).sum(2) + np.square(known.x).sum(2)
        slack = rounding * (np.nansum(np.abs(size), 0) + rounding * own * reach)
        with np.errstate(invalid="ignore"):
            upper = ahead + most / 2 * np.square(way).sum(2)
        lower = ahead + np.nan_to_num(bend)
        # What is not known is NaN, and contradicts nothing.
        bad |= ((rise < lower - slack) | (rise > upper + slack)).any(1)
        bad |= (
            (rise > back - np.nan_to_num(bend) + slack) | (back - ahead < 2 * (bend - slack))
        ).any(1)
    return bad


def lengths(vectors: Floats) -> Floats:
    """|v| along the last axis."""
    return np.asarray(np.sqrt(np.square(vectors).sum(-1)))


def unbounded(hessian: Floats, bound: Floats, rounding: float) -> Bools:
    """True for Hessians (N, d, d) with eigenvalues below 0 or above the bound."""
    values = np.linalg.eigvalsh(hessian)
    slack = rounding * np.maximum(bound, 0.0)
    return np.asarray((values[:, 0] < -slack) | (values[:, -1] > bound + slack))
