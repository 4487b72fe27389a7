"""Functions of the differences z = B x of the users' models, as Newton's method needs them.

The Moreau envelope of the penalty is what a step of the augmented Lagrangian minimises; the penalty
itself is smooth as long as no difference is 0, as in the reduced problem of a partition.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from corsage.core.arrays import Bools, Floats
from corsage.solvers.convex_clustering.exact.edges import norms

TINY = float(np.finfo(np.float64).tiny)
FLOOR = 1e-100
"""The least difference of models that are not fused: its curvature is finite."""


class Term(Protocol):
    """A function of the differences z (E, d), and its derivatives there.

    An edge's Hessian is a_e I - b_e u_e u_e' with the unit vector u_e.
    """

    @property
    def values(self) -> Floats:
        """(E,)."""

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
    def values(self) -> Floats:
        """Up to a constant."""
        near = np.minimum(self.size, self.radius)
        return np.asarray(near * (self.size - near / 2) / self.sigma)

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
        """The curvature that is missing along u: all of it outside of the ball, else nothing."""
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
        return np.maximum(norms(self.z), FLOOR)

    @cached_property
    def values(self) -> Floats:
        """The penalty."""
        return np.asarray(self.radius * self.size)

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
