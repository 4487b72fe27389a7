"""Descent to the centres of known clusters along users' sums of values and slopes.

L-BFGS (Nocedal 1980), in the metric of the bound of Boehning 1992 on the multinomial loss: sum
z z'/2 for every class, in which no curvature is above 1. Models are (d, C), the intercept last.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from corsage.core.arrays import Floats

CLASS_CURVATURE = 0.5
"""The largest curvature in a sample's scores."""
ARMIJO_SHARE = 1e-4
"""The share of what a slope promises that a step must bring (Armijo 1966)."""
DESCENT_ROUNDING = 1e-12
"""A share of a sum that is rounding."""
REMEMBERED_STEPS = 20
"""Steps that the curvature is known from."""
MOST_STEP_HALVINGS = 40
"""Halvings of a step or way."""


@dataclass
class Descent:
    """L-BFGS (Nocedal 1980) that is told values and slopes of where it wants to look.

    Parameters
    ----------
    at : where it is.
    first : the length of the first slope; 0: it is not known yet.
    """

    at: Floats
    first: float = 0.0
    value: float = np.inf
    slope: Floats = field(default_factory=lambda: np.zeros(0))
    way: Floats = field(default_factory=lambda: np.zeros(0))
    length: float = 0.0
    steps: list[tuple[Floats, Floats]] = field(default_factory=list)
    stuck: bool = False

    @property
    def next(self) -> Floats:
        """The next place to look at."""
        return self.at + self.length * self.way if self.way.size else self.at

    @property
    def left(self) -> float:
        """The slope, as a share of the first one."""
        return float(np.linalg.norm(self.slope)) / self.first if self.first else 0.0

    def told(self, value: float, slope: Floats) -> None:
        """Go there, if it is low enough; else look again at half the way."""
        if self.way.size:
            least = self.value + ARMIJO_SHARE * self.length * float(self.slope @ self.way)
            if not value <= least + DESCENT_ROUNDING * abs(self.value):
                self.length /= 2
                self.stuck = self.length < 2.0**-MOST_STEP_HALVINGS
                return
            moved, bent = self.length * self.way, slope - self.slope
            if moved @ bent > DESCENT_ROUNDING * np.linalg.norm(moved) * np.linalg.norm(bent):
                self.steps = [*self.steps, (moved, bent)][-REMEMBERED_STEPS:]
            self.at = self.at + moved
        else:
            self.first = self.first or float(np.linalg.norm(slope))
        self.value, self.slope, self.length = value, slope, 1.0
        self.way = -self._turned(slope)

    def _turned(self, slope: Floats) -> Floats:
        """The slope by the inverse curvature that the steps show."""
        turned, parts = slope.copy(), list[float]()
        for moved, bent in reversed(self.steps):
            parts.append(float(moved @ turned) / float(moved @ bent))
            turned -= parts[-1] * bent
        if self.steps:
            moved, bent = self.steps[-1]
            turned *= float(moved @ bent) / float(bent @ bent)
        for (moved, bent), part in zip(self.steps, reversed(parts), strict=True):
            turned += moved * (part - float(bent @ turned) / float(moved @ bent))
        return turned


@dataclass(frozen=True)
class Centres:
    """w_j and wbar as one vector, in the metric of the bound.

    Parameters
    ----------
    squares : sum of z z', weighted as losses are, of each cluster (k, d, d).
    lam : of w_j to wbar, by coefficient (d,): all 0, or none; infinite: w_j is wbar there.
    rho : of wbar, or where lam is 0 of w_j, to 0 (d,).
    classes : C.
    """

    squares: Floats
    lam: Floats
    rho: Floats
    classes: int

    @property
    def apart(self) -> bool:
        """True if clusters know nothing of each other."""
        return not self.lam.any()

    @cached_property
    def unit(self) -> Floats:
        """(S'S)^-1 = sum z z'/2 + rho, of wbar (1, d, d), or of each w_j (k, d, d)."""
        squares = self.squares if self.apart else self.squares.sum(0, keepdims=True)
        return inverse_root(CLASS_CURVATURE * squares + np.diag(self.rho))

    @cached_property
    def own_unit(self) -> Floats:
        """The same of w_j - wbar (k, d, d); 0 where there is no deviation."""
        free = np.isfinite(self.lam)
        pull = np.where(free, self.lam, 1.0)
        squares = CLASS_CURVATURE * self.squares * free * free[:, None]
        return inverse_root(squares + np.diag(pull)) * free[:, None]

    @property
    def clusters(self) -> int:
        """Numbers of clusters that deviate."""
        deviate = not self.apart and bool(np.isfinite(self.lam).any()) and len(self.squares) > 1
        return len(self.squares) if deviate else 0

    @property
    def size(self) -> int:
        """The count of these numbers."""
        return int((len(self.unit) + self.clusters) * self.squares.shape[1] * self.classes)

    def split(self, x: Floats) -> tuple[Floats, Floats]:
        """wbar (1, d, C), or where clusters are apart w_j; and the deviations from it."""
        parts = x.reshape(-1, self.squares.shape[1], self.classes)
        top, own = parts[: len(self.unit)], parts[len(self.unit) :]
        return self.unit @ top, self.own_unit @ own if self.clusters else np.zeros((1, 1, 1))

    def models(self, x: Floats) -> tuple[Floats, Floats]:
        """w_j (k, d, C) and wbar (d, C)."""
        top, own = self.split(x)
        shape = len(self.squares), self.squares.shape[1], self.classes
        return np.broadcast_to(top + own, shape).copy(), top.mean(0)

    def vector(self, w: Floats, wbar: Floats) -> Floats:
        """The numbers of such models."""
        top = np.linalg.solve(self.unit, w if self.apart else wbar[None])
        if not self.clusters:
            return np.asarray(top.ravel(), np.float64)
        own = np.linalg.pinv(self.own_unit) @ (w - wbar)
        return np.asarray(np.concatenate([top, own]).ravel(), np.float64)

    def whole(self, x: Floats, value: float, slopes: Floats) -> tuple[float, Floats]:
        """The objective and its slope, from the clusters' sums."""
        top, own = self.split(x)
        pull = np.where(np.isfinite(self.lam), self.lam, 0.0)[:, None] * own
        value += float((self.rho[:, None] * top**2).sum() + (pull * own).sum()) / 2
        whole = slopes if self.apart else slopes.sum(0, keepdims=True)
        found = [self.unit.mT @ (whole + self.rho[:, None] * top)]
        if self.clusters:
            found.append(self.own_unit.mT @ (slopes + pull))
        return value, np.concatenate(found).ravel()


def inverse_root(matrices: Floats) -> Floats:
    """S with S'AS = I, of positive A (k, d, d)."""
    size = np.trace(matrices, axis1=1, axis2=2)[:, None, None]
    shift = 16 * np.finfo(np.float64).eps * size * np.eye(matrices.shape[1])
    return np.linalg.inv(np.linalg.cholesky(matrices + shift)).mT
