"""Users that the mixed model sets aside, as their sums are not like the others'.

Who is set aside is in no sum from which centres and variances come. It has a model of its own all
the same: its own rows, tied to the centre of the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from corsage.core.arrays import Floats
from corsage.core.messages.replies import name_users
from corsage.solvers.known_clusters.variances.unlike import Scores
from corsage.strategies.rounds.job import Job
from corsage.strategies.rounds.results import Finding

if TYPE_CHECKING:
    from corsage.strategies.known_clusters.mixed_state import MixedModelKeys

SET_ASIDE = "Set aside: sums that are not like the others'"
COUNTED = "Counted all the same: sums that are not like the others'"
UNGUARDED = "a user that lies is not set aside, and can own all centres: {}"
MOST_SCORED = 10_000
"""Users who are scored where all count whatever comes out."""
MOST_NAMED = 20
"""Users that are printed; users.csv has all."""


@dataclass
class Aside:
    """The scores of all users, and who is set aside.

    Parameters
    ----------
    users, between, within : who was looked at, and their scores as N(0, 1) (unlike.py).
    named : who is set aside.
    unlike : who would be, and counts all the same.
    settled : they were found before, and are not looked for again.
    square : what one model of many leaves of the labels of those that are not set aside.
    """

    users: list[str] = field(default_factory=list)
    between: Floats = field(default_factory=lambda: np.zeros(0))
    within: Floats = field(default_factory=lambda: np.zeros(0))
    named: list[str] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)
    settled: bool = False
    square: float = 0.0

    @classmethod
    def of(cls, users: list[str], found: Scores, far: list[str], out: bool) -> Aside:
        """Of users with these scores; `out`: those that are `far` are set aside."""
        named, unlike = (far, []) if out else ([], far)
        return cls(users, found.between, found.within, named, unlike)

    @property
    def note(self) -> str:
        """A line for when somebody is set aside, or would be."""
        if self.unlike:
            return (
                f"{name_users(self.unlike)} counted all the same: sums that are not like the "
                "others'; mixed-aside=always is the fit without"
            )
        return (
            f"{name_users(self.named)} set aside: sums that are not like the others' count in no "
            "centre and no variance; mixed-aside=never counts them"
        )

    def findings(self) -> list[Finding]:
        """A table of those that are set aside, or would be, if anybody is."""
        place = {user: row for row, user in enumerate(self.users)}
        far = self.named or self.unlike
        rows = [(f"user {user}", self.text(place[user])) for user in far[:MOST_NAMED]]
        if (more := len(far) - MOST_NAMED) > 0:
            rows.append(("...", f"{more} more in users.csv"))
        return [Finding(SET_ASIDE if self.named else COUNTED, rows)] if rows else []

    def text(self, row: int) -> str:
        """The scores of one, in words."""
        return (
            f"its estimate is {self.between[row]:.3g}, and its noise {self.within[row]:.3g} "
            "deviations from what the others' say"
        )

    def columns(self) -> dict[str, dict[str, Any]]:
        """Columns for tables of users."""
        out = set(self.named)
        numbers = {"between": self.between, "within": self.within}
        found = {
            name: dict(zip(self.users, np.round(own, 3).tolist(), strict=True))
            for name, own in numbers.items()
        }
        return {**found, "aside": {user: int(user in out) for user in self.users}}


def tested(job: Job, keys: MixedModelKeys) -> bool:
    """True if sums are held against those of others: they must be those of plain squares.

    Where nobody would be set aside anyway, large crowds are not: it takes as long as the fit.
    """
    model = job.config.model
    if len(job.members.users) > MOST_SCORED and not sets_aside(job, keys):
        return False
    plain = job.loss == "squared" and model.loss_scale != "mean" and not model.ridge
    return plain and keys.mixed_aside != "never"


def sets_aside(job: Job, keys: MixedModelKeys) -> bool:
    """True if who is not like the others is set aside.

    Nobody lies in a simulation of one's own table: there an extreme user is part of the answer.
    """
    return keys.mixed_aside == "always" or not job.members.at_home


def unguarded(job: Job, keys: MixedModelKeys, obstacle: str) -> str:
    """Why one user that lies can own all centres; empty: it cannot.

    `obstacle`: why users do not send sums of their own. Strengths that are given bound slopes of
    other losses, and nobody leans on others with gamma = 0.
    """
    bounded = job.loss != "squared" and not keys.estimated and keys.known_gamma != "inf"
    if keys.known_gamma == "0" or bounded:
        return ""
    if keys.mixed_aside == "never":
        return "mixed-aside=never"
    if not tested(job, keys):
        return (
            "only sums of the squared loss, without a ridge, and logistic likelihoods of devices "
            "with one user each, can be held against others'"
        )
    return "mixed-variances=summed" if keys.mixed_variances == "summed" else obstacle
