"""Known clusters with losses that are not quadratic: block Newton, one round of sums a step.

The users' losses are replaced by quadratics 1/2 theta' A_i theta - b_i' theta at the present
theta_i, and these solved as in mixed_model.py; a few such rounds are Newton's method.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from corsage.core.arrays import Floats

EXACT, NEWTON, ABOVE = "exact", "newton", "above"
"""Kinds of A_i and b_i: f_i itself; its like near theta_i; a quadratic that f_i is below."""
IN_CIRCLES, FIRST_SPELL = 4, 5
"""Newton rounds without progress that are too many; rounds of the other kind that then follow."""
FLAT = 1e-10
"""Curvature that is a smaller share of the largest is none."""
UNDECIDED = 1e-4
"""With less information than such a share of one undecided record has all records are decided."""
REACH = 3.0
"""A Newton step changes no score of a user's by more than this."""


def newton_message(hessian: Floats, gradient: Floats, theta: Floats) -> tuple[Floats, Floats]:
    """A_i, b_i of the quadratic that f_i is like near theta_i: A = H, b = H theta - gradient."""
    return hessian, np.asarray((hessian @ theta[..., None])[..., 0] - gradient)


@dataclass(frozen=True)
class Pace:
    """The kind of the next quadratics.

    Where curvature jumps, as of Huber's and the hinge loss, Newton's method can run in circles.
    Quadratics from above never do, but are slow. So if the changes of Newton's rounds stop getting
    less, a spell of the others follows, each time a longer one, until Newton's method ends it.

    Parameters
    ----------
    left : rounds of the present spell that are to come.
    spells : how many there have been.
    least, since : the least change in Newton's rounds since, and the rounds since then.
    """

    left: int = 0
    spells: int = 0
    least: float | None = None
    since: int = 0

    @property
    def kind(self) -> str:
        """The kind of the next quadratics: Newton's, or from above."""
        return ABOVE if self.left else NEWTON

    def after(self, moved: float) -> Pace:
        """After a round that moved the models by so much."""
        if self.left:
            return Pace(self.left - 1, self.spells)
        if self.least is None or moved < 0.9 * self.least:
            return Pace(0, self.spells, moved)
        if self.since + 1 < IN_CIRCLES:
            return Pace(0, self.spells, self.least, self.since + 1)
        return Pace(FIRST_SPELL * 2**self.spells, self.spells + 1)


def damped(step: Floats, reach: Floats, limit: float = REACH) -> Floats:
    """Steps (n, d) cut to where no score moves by more than `limit`; reach (n,) = max |X_i step|.

    Beyond that the quadratic says little of a logistic loss.
    """
    return np.asarray(step * (limit / np.maximum(reach, limit))[..., None])


def travelled(step: Floats, theta: Floats) -> Floats:
    """[sum |step_i|^2, sum |theta_i|^2] of a node's users: two numbers that add over nodes."""
    return np.array([np.square(step).sum(), np.square(theta).sum()])


def change(sums: Floats) -> float:
    """The distance that a round moved the models, as a share of their length (of 1 if shorter)."""
    return float(np.sqrt(sums[0] / max(sums[1], 1.0)))


def separated(now: Floats, first: Floats, records: float) -> Floats:
    """The directions (d, r) in which classes are told apart without error.

    From the curvature (d, d) of all losses at their models, and at the first one, where all records
    were undecided. In such a direction a logistic likelihood has no top, and each of Newton's steps
    makes the curvature e times less.
    """
    values, vectors = np.linalg.eigh(first)
    told = vectors[:, values > FLAT * values[-1]] / np.sqrt(values[values > FLAT * values[-1]])
    shares, own = np.linalg.eigh(told.T @ now @ told)
    return np.asarray(told @ own[:, shares * records / 4 < UNDECIDED])
