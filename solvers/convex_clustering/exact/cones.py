"""Pairs of points in second-order cones: what the interior-point method keeps of every edge.

An edge e has s_e = (t_e, z_e) with t_e >= |z_e|, the length of its difference from above, and
y_e = (r_e, -mu_e) with r_e >= |mu_e|, its dual. Both lie inside of their cones, and <s_e, y_e> is
what the edge adds to the duality gap. Arrays of vectors are (d, E), those of numbers (E,).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from corsage.core.arrays import Floats

PRECISE = 1e-3
"""A product that is a smaller share of its terms is not computed from them, but carried on."""
ABOVE = 0.01
"""By how much t is longer, at least, than what is known to be near; a share of the mean length."""


def dot(p: Floats, q: Floats) -> Floats:
    """The inner products of vectors (d, E), (E,)."""
    return np.asarray(np.einsum("ke,ke->e", p, q))


@dataclass(frozen=True)
class Step:
    """Changes of t, z and mu."""

    t: Floats
    z: Floats
    mu: Floats


@dataclass(frozen=True)
class Pairs:
    """s_e and y_e, and their products: t^2 - |z|^2, r^2 - |mu|^2 and <s, y>.

    On an edge that is not fused t - |z| and r - |mu| become so small that nothing is left of them
    when they are computed; so the products are carried from step to step.
    """

    t: Floats
    z: Floats
    r: Floats
    mu: Floats
    ss: Floats
    yy: Floats
    sy: Floats

    @classmethod
    def outside(cls, z: Floats, r: Floats) -> Pairs:
        """mu = 0, and t longer than |z| by the mean length."""
        size = np.sqrt(dot(z, z))
        more = float(size.mean()) or 1.0
        t = size + more
        return cls(t, z, r, np.zeros_like(z), more * (t + size), r * r, t * r)

    @classmethod
    def near(cls, z: Floats, r: Floats, mu: Floats) -> Pairs:
        """The duals of a problem with smaller radii, and t longer than |z| by what r is than |mu|.

        That is where the pairs of edges that stay apart are alike, as far as one can tell.
        """
        size, pull = np.sqrt(dot(z, z)), np.sqrt(dot(mu, mu))
        t = size * r.sum() / pull.sum() + ABOVE * (float(size.mean()) or 1.0)
        ss, yy = (t - size) * (t + size), (r - pull) * (r + pull)
        return cls(t, z, r, mu, ss, yy, t * r - dot(mu, z))

    def along(self, step: Step) -> Way:
        """The way of a step."""
        return Way(self, step)


@dataclass(frozen=True)
class Way:
    """The end of a step from the pairs, and its length."""

    pairs: Pairs
    step: Step

    @cached_property
    def _first(self) -> tuple[Floats, Floats, Floats]:
        """Half the derivatives of ss, yy, sy at its beginning."""
        pairs, step = self.pairs, self.step
        return (
            pairs.t * step.t - dot(pairs.z, step.z),
            -dot(pairs.mu, step.mu),
            (pairs.r * step.t - dot(pairs.mu, step.z) - dot(step.mu, pairs.z)) / 2,
        )

    @cached_property
    def _second(self) -> tuple[Floats, Floats, Floats]:
        """Half their second derivatives."""
        step = self.step
        bent = step.t * step.t - dot(step.z, step.z)
        return bent, -dot(step.mu, step.mu), -dot(step.mu, step.z)

    @cached_property
    def room(self) -> float:
        """The length of the step up to the border of the cones."""
        (s, y, _), (ss, yy, _) = self._first, self._second
        return min(_root(ss, s, self.pairs.ss), _root(yy, y, self.pairs.yy))

    def gap(self, length: float) -> float:
        """The sum of <s, y> there."""
        slope, bent = float(self._first[2].sum()), float(self._second[2].sum())
        return float(self.pairs.sy.sum()) + length * (2 * slope + length * bent)

    def at(self, length: float) -> Pairs:
        """The pairs there."""
        here, step = self.pairs, self.step
        t, z, mu = here.t + length * step.t, here.z + length * step.z, here.mu + length * step.mu
        products = (here.ss, here.yy, here.sy)
        ss, yy, sy = (
            known + length * (2 * slope + length * bent)
            for known, slope, bent in zip(products, self._first, self._second, strict=True)
        )
        z_size, mu_size, r = np.sqrt(dot(z, z)), np.sqrt(dot(mu, mu)), here.r
        ss = _fresh((t - z_size) * (t + z_size), ss, t * t)
        yy = _fresh((r - mu_size) * (r + mu_size), yy, r * r)
        sy = _fresh(t * r - dot(mu, z), sy, t * r)
        return Pairs(t, z, r, mu, ss, yy, np.maximum(sy, np.sqrt(ss * yy)))


def _fresh(computed: Floats, carried: Floats, size: Floats) -> Floats:
    """The computed product where it is precise."""
    return np.where(computed > PRECISE * size, computed, carried)


def _root(a: Floats, b: Floats, c: Floats) -> float:
    """The least positive root of a x^2 + 2 b x + c of all edges, c > 0; infinite without one."""
    below = b * b - a * c
    root = np.sqrt(np.maximum(below, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(b <= 0, c / (root - b), np.where(a < 0, -(b + root) / a, np.inf))
    return float(np.min(found, where=(below >= 0) & (found > 0), initial=np.inf))


@dataclass(frozen=True)
class Scaling:
    """Nesterov and Todd's scaling W of the pairs: W y = W^-1 s = lambda, W^2 = eta^2 (2 w w' - J).

    J = diag(1, -1, ..., -1). Its formulas are those of CVXOPT's coneprog (Vandenberghe 2010), the
    unknown t_e eliminated: what is left of W^-2 is a_e I - b_e w w' for the z_e.
    """

    pairs: Pairs

    @cached_property
    def _sizes(self) -> tuple[Floats, Floats]:
        return np.sqrt(self.pairs.ss), np.sqrt(self.pairs.yy)

    @cached_property
    def eta2(self) -> Floats:
        """eta^2."""
        s, y = self._sizes
        return np.asarray(s / y)

    @cached_property
    def eta(self) -> Floats:
        """eta."""
        return np.sqrt(self.eta2)

    @cached_property
    def det(self) -> Floats:
        """lambda_0^2 - |lambda_1|^2."""
        s, y = self._sizes
        return np.asarray(s * y)

    @cached_property
    def _gamma(self) -> Floats:
        return np.sqrt((1 + self.pairs.sy / self.det) / 2)

    @cached_property
    def w0(self) -> Floats:
        """The first entry of w."""
        s, y = self._sizes
        return np.asarray((self.pairs.t / s + self.pairs.r / y) / (2 * self._gamma))

    @cached_property
    def w(self) -> Floats:
        """The others, (d, E)."""
        s, y = self._sizes
        return np.asarray((self.pairs.z / s + self.pairs.mu / y) / (2 * self._gamma))

    @cached_property
    def span(self) -> Floats:
        """1 + 2 |w|^2."""
        return 1 + 2 * dot(self.w, self.w)

    @cached_property
    def a(self) -> Floats:
        """1/eta^2."""
        return 1 / self.eta2

    @cached_property
    def b(self) -> Floats:
        """The curvature that is missing along w."""
        return 2 * self.a / self.span

    @cached_property
    def point(self) -> tuple[Floats, Floats]:
        """lambda."""
        (s, y), gamma, p = self._sizes, self._gamma, self.pairs
        s0, y0 = p.t / s, p.r / y
        root = np.sqrt(self.det)
        share = root / (s0 + y0 + 2 * gamma)
        first, second = share * (gamma + y0) / s, share * (gamma + s0) / y
        return root * gamma, first * p.z - second * p.mu

    def times(self, p0: Floats, p: Floats) -> tuple[Floats, Floats]:
        """W (p0, p)."""
        along = dot(self.w, p)
        return self.eta * (self.w0 * p0 + along), self.eta * (
            p + self.w * (p0 + along / (1 + self.w0))
        )

    def back(self, p0: Floats, p: Floats) -> tuple[Floats, Floats]:
        """W^-1 (p0, p)."""
        along = dot(self.w, p)
        return (self.w0 * p0 - along) / self.eta, (
            p - self.w * (p0 - along / (1 + self.w0))
        ) / self.eta

    def bent(self, v: Floats) -> Floats:
        """(a I - b w w') v."""
        return np.asarray(self.a * v - self.w * (self.b * dot(self.w, v)))

    def corrected(self, step: Step, centre: float) -> tuple[Floats, Floats]:
        """Mehrotra's right side h: W^2 dy + ds = h leads to <s, y> = `centre` on every edge."""
        (l0, l1), none = self.point, np.zeros_like(step.t)
        p0, p1 = self.back(step.t, step.z)
        q0, q1 = self.times(none, -step.mu)
        k0 = l0 * l0 + dot(l1, l1) + p0 * q0 + dot(p1, q1) - centre
        k1 = 2 * l0 * l1 + p0 * q1 + q0 * p1
        d0 = (l0 * k0 - dot(l1, k1)) / self.det
        return self.times(-d0, (l1 * d0 - k1) / l0)
