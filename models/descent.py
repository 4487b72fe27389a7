"""Newton's method for sum f_i(x_i) + a function of the differences B x, and two such functions.

The Moreau envelope of the penalty is what a step of the augmented Lagrangian minimises; the
penalty itself is smooth as long as no difference is 0, as in the reduced problem of a partition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from corsage.models.costs import Smooth
from corsage.models.edges import Bools, Edges, norms
from corsage.models.linear_problem import Floats
from corsage.models.newton_system import System

TINY = float(np.finfo(np.float64).tiny)
EPS = float(np.finfo(np.float64).eps)
ARMIJO, SHORTEST = 1e-4, 1e-10
FORCING = 1e-2
"""The residual of a Newton system, as a share of |g|; it falls with |g|."""


class Term(Protocol):
    """A function of the differences z (E, d), and its derivatives there.

    An edge's Hessian is a_e I - b_e u_e u_e' with the unit vector u_e.
    """

    @property
    def value(self) -> float:
        """The sum over the edges."""

    @property
    def slope(self) -> Floats:
        """The gradients in z_e, (E, d)."""

    @property
    def a(self) -> Floats:
        """(E,)."""

    @property
    def b(self) -> Floats:
        """(E,)."""

    @property
    def unit(self) -> Floats:
        """(E, d)."""


@dataclass(frozen=True)
class Envelope:
    """The Moreau envelope of r_e |z_e|: quadratic near z = 0, then linear, smooth for Newton."""

    z: Floats
    mu: Floats
    radius: Floats
    sigma: float

    @cached_property
    def u(self) -> Floats:
        """mu + sigma z."""
        return self.mu + self.sigma * self.z

    @cached_property
    def size(self) -> Floats:
        """|u_e|."""
        return norms(self.u)

    @property
    def fused(self) -> Bools:
        """Edges on which the minimiser's z is 0."""
        return self.size <= self.radius

    @cached_property
    def shrink(self) -> Floats:
        """min(1, r_e/|u_e|)."""
        return self.radius / np.maximum(self.size, self.radius)

    @cached_property
    def value(self) -> float:
        """Up to a constant."""
        near = np.minimum(self.size, self.radius)
        return float((near * (self.size - near / 2)).sum()) / self.sigma

    @cached_property
    def slope(self) -> Floats:
        """The projection of u: the next duals."""
        return np.asarray(self.u * self.shrink[:, None])

    @property
    def a(self) -> Floats:
        """The curvature across u."""
        return self.sigma * self.shrink

    @property
    def b(self) -> Floats:
        """How much less it is along u: all of it outside of the ball, else nothing."""
        return np.where(self.fused, 0.0, self.a)

    @property
    def unit(self) -> Floats:
        """u_e/|u_e|."""
        return np.asarray(self.u / np.maximum(self.size, TINY)[:, None])


@dataclass(frozen=True)
class Norms:
    """r_e |z_e| itself, where no z_e is 0."""

    z: Floats
    radius: Floats

    @cached_property
    def size(self) -> Floats:
        """|z_e|."""
        return np.maximum(norms(self.z), TINY)

    @cached_property
    def value(self) -> float:
        """The penalty."""
        return float((self.radius * self.size).sum())

    @cached_property
    def unit(self) -> Floats:
        """z_e/|z_e|."""
        return np.asarray(self.z / self.size[:, None])

    @property
    def slope(self) -> Floats:
        """The only possible duals."""
        return np.asarray(self.radius[:, None] * self.unit)

    @property
    def a(self) -> Floats:
        """The curvature across z."""
        return self.radius / self.size

    @property
    def b(self) -> Floats:
        """There is none along z."""
        return self.a


@dataclass(frozen=True)
class Descent:
    """Where Newton's method came to: x, the edges' term and the gradient there, and its steps."""

    x: Floats
    term: Term
    gradient: Floats
    steps: int


def newton(
    costs: Smooth,
    edges: Edges,
    term: Callable[[Floats], Term],
    x: Floats,
    enough: Callable[[Floats, Term], bool],
    limit: int,
    shortest: float = SHORTEST,
) -> Descent:
    """Minimise sum f_i(x_i) + term(B x) from x by at most `limit` damped Newton steps.

    `enough(gradient, term)` ends it, and so does a step that gains nothing any more.
    """
    z = edges.differences(x)
    here, total = term(z), float(costs.value(x).sum())
    gradient = costs.gradient(x) + edges.adjoint(here.slope)
    first = float(np.linalg.norm(gradient))
    for number in range(limit):
        if enough(gradient, here):
            return Descent(x, here, gradient, number)
        system = System(costs.hessian(x), edges, here.a, here.b, here.unit)
        share = float(np.linalg.norm(gradient)) / max(first, TINY)
        dx = system.solve(gradient, min(FORCING, share))
        dz, slope = edges.differences(dx), float((gradient * dx).sum())
        old, length = total + here.value, 1.0
        noise = 4 * EPS * (abs(total) + abs(here.value))
        while True:
            there, new = term(z + length * dz), x + length * dx
            total = float(costs.value(new).sum())
            if total + there.value <= old + ARMIJO * length * slope + noise:
                break
            length /= 2
            if length < shortest:
                return Descent(x, here, gradient, number)
        x, z, here = new, z + length * dz, there
        gradient = costs.gradient(x) + edges.adjoint(here.slope)
    return Descent(x, here, gradient, limit)
