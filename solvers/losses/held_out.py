"""Held-out samples: which they are, and what users can be asked about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.core.seeding import generator
from corsage.solvers.losses.convex import Losses

LOUDEST = 4.0
"""Times what the upper quarter's losses differ by that anybody's count for."""
HIGHEST = 1e6
"""Times what the upper quarter's losses are that anybody's are."""


@dataclass(frozen=True)
class Fold:
    """A part of every user's samples that is held out.

    The samples are put in an order of their own for each `purpose` (and user); of m samples those
    from `number` share m to (`number` + 1) share m are held out.
    """

    purpose: str
    number: int
    share: float

    def held_out(self, seed: int, user: str | int, size: int) -> Ints:
        """The places of a user's held-out samples; never all of them."""
        order = generator(seed, "fold", self.purpose, user).permutation(size)
        first, last = (round((self.number + end) * self.share * size) for end in (0, 1))
        return np.sort(order[first : min(last, first + size - 1)])


class HeldOut(Protocol):
    """Questions to users about samples that are held out."""

    def losses_without(self, fold: Fold | None) -> Losses:
        """f_i on the samples that are not held out; None: on all."""
        ...

    def evaluate(self, models: Floats, fold: Fold) -> Floats:
        """The mean loss, without ridge, of each user's model on its held-out samples (N,).

        NaN for a user who has none: it does not count.
        """
        ...


def bounded(losses: Floats) -> Floats:
    """Losses (K, N) under K choices, of N users of whom nobody's choice is louder than others'.

    They differ by `LOUDEST` times what the upper quarter's do at most, and none is so high that
    rounding hides what others say. NaN is not known.
    """
    known = ~np.isnan(losses)
    low = np.where(known, losses, np.inf).min(0)
    most = np.where(known, losses, -np.inf).max(0)
    differ = np.where(known.any(0), most - low, 0.0)
    limit = LOUDEST * float(np.quantile(differ, 0.75))
    loud, found = differ > limit, np.array(losses)
    found[:, loud] = low[loud] + limit / differ[loud] * (losses[:, loud] - low[loud])
    level = np.where(np.isfinite(low), low, 0.0)
    most = HIGHEST * (limit + float(np.quantile(np.abs(level), 0.75)))
    return np.asarray(found - (level - level.clip(-most, most)))
