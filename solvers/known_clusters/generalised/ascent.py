"""Newton's method on the log marginal likelihood, from sums that users send: one look an exchange.

The place with the highest value is kept, with its gradient and Hessian; each step is the best of
their quadratic within a radius, in which an eigenvalue of the wrong sign counts as its size. The
radius grows where the quadratic foretold the gain, and shrinks where it did not.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from corsage.core.arrays import Floats

LEAST_GAIN = 1e-8
"""The likelihood stands at its top if Newton's step would gain less than this."""
FIRST_RADIUS, LAST_RADIUS = 1.0, 1e-9
"""In standard units: of scores, and of deviations."""
VALUE_ROUNDING = 1e-11
"""The share of a log likelihood that may be rounding."""
BARELY_CURVED = 1e-3
"""A curvature below this, of scores in standard units, is none: the standard error would be 30."""
SMALL_CURVATURE = 1e-2
"""Directions that curve less say nothing: not even that a search has not ended."""
FAR_FROM_ZERO = 8.0
"""No parameter is as large where the likelihood has a top that data tell."""
FALLEN = 1e-4
"""A curvature that fell to this share of the first one's runs out, however near it still is.

Where the likelihood is no hill yet, as it may be where a search begins, nothing has run out."""


@dataclass(frozen=True)
class Ascent:
    """The search.

    Parameters
    ----------
    ahead : the place that is looked at next.
    at : the best place so far, with its `value`, `slope` and `bend`; empty before the first look.
    radius : how far the next step may lead.
    promised : the gain that the quadratic foretold of the present look.
    looks : places looked at.
    first : the first Hessian.
    """

    ahead: Floats
    at: Floats = field(default_factory=lambda: np.zeros(0))
    value: float = 0.0
    slope: Floats = field(default_factory=lambda: np.zeros(0))
    bend: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    radius: float = FIRST_RADIUS
    promised: float = 0.0
    looks: int = 0
    first: Floats = field(default_factory=lambda: np.zeros((0, 0)))

    def look(self, value: float, slope: Floats, bend: Floats, slack: float = 0.0) -> Ascent:
        """After the numbers at the place ahead, which is the best one now if they are no less.

        `slack`: how much too high the best value may be.
        """
        looks, sound = self.looks + 1, bool(np.isfinite(value) and np.isfinite(bend).all())
        if not len(self.at) and not sound:  # nothing is known: nearer to 0
            return replace(self, ahead=self.ahead / 4, looks=looks)
        if len(self.at) and (not sound or value < self.value - VALUE_ROUNDING * abs(value) - slack):
            nearer = min(self.radius, self.length) / 4
            return replace(self, radius=nearer, looks=looks).stepped()
        radius = self.radius
        if len(self.at) and self.promised > 0:
            share, full = (value - self.value) / self.promised, self.length > 0.9 * radius
            radius *= 2.0 if share > 0.5 and full else 0.5 if share < 0.1 else 1.0
        first = self.first if len(self.first) else bend
        found = Ascent(self.ahead, self.ahead, value, slope, bend, radius, 0.0, looks, first)
        return found.stepped()

    @property
    def length(self) -> float:
        """Of the step ahead."""
        return float(np.linalg.norm(self.ahead - self.at))

    @property
    def gain(self) -> float:
        """The gain of Newton's step; infinite before the first look."""
        if not len(self.at):
            return np.inf
        values, vectors = np.linalg.eigh(-self.bend)
        slope = vectors.T @ self.slope
        return float((np.square(slope) / np.maximum(np.abs(values), SMALL_CURVATURE)).sum() / 2)

    @property
    def settled(self) -> bool:
        """True at a top, at a likelihood without one, or where no step leads higher."""
        return self.gain < LEAST_GAIN or bool(self.open.any()) or self.radius < LAST_RADIUS

    @property
    def open(self) -> Floats:
        """1 for parameters that run away, where the likelihood curves neither way any more (K,)."""
        if not len(self.at):
            return np.zeros(0)
        values, vectors = np.linalg.eigh(-self.bend)
        found = np.zeros(len(self.at))
        for value, vector in zip(values, vectors.T, strict=True):
            fell = abs(value) < FALLEN * -(vector @ self.first @ vector)
            if abs(value) < BARELY_CURVED and (fell or abs(vector @ self.at) > FAR_FROM_ZERO):
                found = np.maximum(found, np.abs(vector) > 0.1)
        return found

    @property
    def covariance(self) -> Floats:
        """The inverse of the observed information, 0 where there is none."""
        return np.asarray(np.linalg.pinv(-self.bend, rcond=1e-12, hermitian=True))

    def stepped(self) -> Ascent:
        """With the best place of the quadratic within the radius ahead."""
        values, vectors = np.linalg.eigh(-self.bend)
        sizes = np.maximum(np.abs(values), 1e-12 * np.abs(values).max(initial=1e-300))
        slope = vectors.T @ self.slope
        low, high = 0.0, float(np.linalg.norm(slope)) / max(self.radius, LAST_RADIUS)
        damping = 0.0
        if np.linalg.norm(slope / sizes) > self.radius:
            for _ in range(100):
                damping = (low + high) / 2
                long = np.linalg.norm(slope / (sizes + damping)) > self.radius
                low, high = (damping, high) if long else (low, damping)
        step = slope / (sizes + damping)
        promised = float(slope @ step - (values * step**2).sum() / 2)
        return replace(self, ahead=self.at + vectors @ step, promised=promised)
