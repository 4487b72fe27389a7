"""Numbers that a profile holds at a value: a standard deviation, a correlation, or the noise.

All numbers are those x of the levels' roots (shapes.py) and log sigma^2, at the end, z in all. A
constraint is taken into them: free numbers y say where on it one is. Of a standard deviation the
level's root is y's, times what makes it so large.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from corsage.core.arrays import Floats
from corsage.solvers.known_clusters.variances.shapes import Shape

NO_DEVIATION = 1e-5
"""A deviation that is a smaller share of sigma is 0: a million records would not tell it."""
CLOSEST = 8.0
"""atanh of the correlation beyond which it is 1."""


class Constraint(Protocol):
    """A number that is held at a value, and where the others are then."""

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Of all levels."""

    def bounds(self, z: Floats) -> tuple[float, float]:
        """Beyond these it is not looked at, if z is the likeliest."""

    def value(self, z: Floats) -> float:
        """The value at z."""

    def place(self, y: Floats, u: float) -> Floats:
        """The numbers z on the constraint."""

    def slopes(self, y: Floats, u: float) -> tuple[Floats, Floats]:
        """dz/dy, and dz/du."""

    def told(self, u: float) -> float:
        """The value in its own unit."""


@dataclass(frozen=True)
class Noise:
    """log sigma is held."""

    shapes: tuple[Shape, ...]

    def bounds(self, z: Floats) -> tuple[float, float]:
        """It may be anything."""
        return -np.inf, np.inf

    def value(self, z: Floats) -> float:
        """log sigma."""
        return float(z[-1] / 2)

    def place(self, y: Floats, u: float) -> Floats:
        """All others are free."""
        return np.append(y[:-1], 2 * u)

    def slopes(self, y: Floats, u: float) -> tuple[Floats, Floats]:
        """dz/dy, dz/du."""
        last = np.eye(len(y))[-1]
        return np.diag(1 - last), 2 * last

    def told(self, u: float) -> float:
        """sigma^2."""
        return float(np.exp(2 * u))


@dataclass(frozen=True)
class Deviation:
    """The log of the standard deviation of t'theta at a level: sigma |t'L|; L keeps its form.

    Of sizes by group (cluster) it is that of the mean variance.
    """

    shapes: tuple[Shape, ...]
    level: int
    t: Floats

    def bounds(self, z: Floats) -> tuple[float, float]:
        """From no variance upwards."""
        return float(np.log(NO_DEVIATION) + z[-1] / 2), np.inf

    @property
    def rows(self) -> slice:
        """The places of the level's numbers."""
        start = sum(shape.size for shape in self.shapes[: self.level])
        return slice(start, start + self.shapes[self.level].size)

    def length(self, x: Floats) -> tuple[float, Floats]:
        """|t'L| and its slope."""
        shape = self.shapes[self.level]
        own = self.t @ shape.roots(x)  # (g, r)
        size = float(np.sqrt(np.square(own).sum() / len(own)))
        moved = np.einsum("d,kgdr->kgr", self.t, shape.directions(x))
        slope = np.einsum("gr,kgr->k", own, moved) / len(own) / max(size, 1e-300)
        return size, slope

    def value(self, z: Floats) -> float:
        """The log; -inf of a variance that is 0."""
        size = self.length(z[self.rows])[0]
        return float(np.log(size) + z[-1] / 2) if size > NO_DEVIATION else -np.inf

    def slope(self, z: Floats) -> Floats:
        """The slope of the log in z."""
        size, slope = self.length(z[self.rows])
        found = np.zeros(len(z))
        found[self.rows], found[-1] = slope / size, 0.5
        return found

    def place(self, y: Floats, u: float) -> Floats:
        """L times a number."""
        z = y.copy()
        z[self.rows] *= np.exp(u - y[-1] / 2) / self.length(y[self.rows])[0]
        return z

    def slopes(self, y: Floats, u: float) -> tuple[Floats, Floats]:
        """dz/dy, dz/du."""
        x, found = y[self.rows], np.eye(len(y))
        size, slope = self.length(x)
        factor = np.exp(u - y[-1] / 2) / size
        found[self.rows, self.rows] = factor * (np.eye(len(x)) - np.outer(x, slope) / size)
        found[self.rows, -1] = -factor * x / 2
        along = np.zeros(len(y))
        along[self.rows] = factor * x
        return found, along

    def told(self, u: float) -> float:
        """The variance."""
        return float(np.exp(2 * u))


@dataclass(frozen=True)
class Correlation:
    """atanh of the correlation of the first two coordinates of a full, turned root, a level's."""

    shapes: tuple[Shape, ...]
    level: int

    def bounds(self, z: Floats) -> tuple[float, float]:
        """From a correlation of -1 to one of 1."""
        return -CLOSEST, CLOSEST

    @property
    def at(self) -> tuple[int, int, int]:
        """The places of L_00, L_10 and L_11."""
        start = sum(shape.size for shape in self.shapes[: self.level])
        return start, start + 1, start + 2

    def value(self, z: Floats) -> float:
        """u, where L_10 = sinh(u) |L_11| sign(L_00)."""
        first, across, down = z[[*self.at]]
        return float(np.arcsinh(across / max(abs(down), 1e-300)) * np.sign(first))

    def place(self, y: Floats, u: float) -> Floats:
        """L_10 from L_11."""
        z, (first, across, down) = y.copy(), self.at
        z[across] = np.sinh(u) * abs(y[down]) * np.sign(y[first])
        return z

    def slopes(self, y: Floats, u: float) -> tuple[Floats, Floats]:
        """dz/dy, dz/du."""
        found, along, (first, across, down) = np.eye(len(y)), np.zeros(len(y)), self.at
        sign = np.sign(y[first])
        found[across] = 0.0
        found[across, down] = np.sinh(u) * np.sign(y[down]) * sign
        along[across] = np.cosh(u) * abs(y[down]) * sign
        return found, along

    def told(self, u: float) -> float:
        """The correlation."""
        return float(np.tanh(u))
