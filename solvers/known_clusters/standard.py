"""Coefficients in units in which all features are alike, so that results do not depend on units.

Features are centred on their means over all records, where there is an intercept to take these up,
and divided by their deviations. Then one variance for all coefficients, or one for each and no
correlation, means the same whatever the features were measured in. From the users' sums alone.

Where 0 of a column is a place that is meant (days since a study began), coefficients that are not
correlated at 0 are another model than such that are not at the mean: `zero` is for that one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from corsage.core.arrays import Floats
from corsage.solvers.known_clusters.blocks import Sums

CONSTANT = 1e-10
"""A feature whose variance is a smaller share of its mean square than this is constant."""

FAR_AWAY = 1e4
"""In deviations of a feature: its squares then have eight digits more than its variance."""


@dataclass(frozen=True)
class Standard:
    """theta = T x + start: x in standard units.

    Parameters
    ----------
    matrix : T (d, d).
    start : the intercept at the mean of all labels.
    sound : 0 for features that are constant, of which nothing is known, else 1 (d,).
    """

    matrix: Floats
    start: Floats
    sound: Floats

    @classmethod
    def of(
        cls, a: Floats, b: Floats, records: float, intercept: bool, zero: Floats | None = None
    ) -> Standard:
        """From the sums over all users of A (d, d) and b (d,); the intercept is last.

        Where units do not differ in the intercept, or independently, features are around their 0:
        `zero` over its last number (d,), and not around their means. One whose 0 is `FAR_AWAY` is
        around its mean: no sums could tell it from an intercept.
        """
        squares, start, means = np.diag(a).copy(), np.zeros(len(b)), np.zeros(len(b))
        count = records
        if intercept:
            count = a[-1, -1]
            means[:-1], start[-1] = a[-1, :-1] / count, b[-1] / count
            around = squares - count * np.square(means)
            squares = np.where(around > CONSTANT * squares, around, 0.0)
            if zero is not None:
                away = means[:-1] - zero[:-1] / zero[-1]
                far = np.square(away) * count > FAR_AWAY**2 * squares[:-1]
                means[:-1] -= np.where(far, 0.0, away)
        sound = squares > 0
        inverse = np.sqrt(count / np.where(sound, squares, count))
        matrix = np.diag(inverse)
        matrix[-1] -= means * inverse
        return cls(matrix, start, sound.astype(np.float64))

    @property
    def density(self) -> float:
        """log |T|, over what is not constant: likelihoods of wbar are in its own units."""
        return float(np.sum(self.sound * np.log(np.diag(self.matrix))))

    def models(self, x: Floats) -> Floats:
        """theta (..., d) of x."""
        return np.asarray(x @ self.matrix.T + self.start)

    def covariances(self, inner: Floats) -> Floats:
        """Of theta, (..., d, d), from those of x."""
        return np.asarray(self.matrix @ inner @ self.matrix.T)

    def sums(self, a: Floats, b: Floats, yy: Floats) -> Sums:
        """A, b, yy of the users in standard units."""
        rest = b - a @ self.start
        square = yy - (b + rest) @ self.start
        half = (a.reshape(-1, len(self.start)) @ self.matrix).reshape(a.shape)
        inner = self.matrix.T @ half * np.outer(self.sound, self.sound)
        return Sums.of(inner, rest @ self.matrix * self.sound, square)
