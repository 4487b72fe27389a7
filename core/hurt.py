"""Users who are worse off under one method than under another, such as on their own.

A mean says nothing of that: a method may lift it and still leave a third of the users with a worse
model than the one that they had alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from corsage.core.measures import Measure, measure_of

TIE = 1e-6
"""Two values are a tie if they differ by no more than this share of them: rounding does that."""
NO_DIFFERENCE = 1e-9
"""Nor do they differ by less than this share of what one constant answer scores."""
CERTAIN = 1.645
"""Standard errors of a difference that chance exceeds in one case of twenty."""
ROW_ALONE, ROW_TOGETHER = "alone", "together"
NEW_SUFFIX = "+new"
"""How rows of new users end: they are compared with one another."""
REFERENCES: Mapping[str, tuple[str, ...]] = {
    ROW_ALONE: ("local", "exact-local"),
    ROW_TOGETHER: ("fedavg", "exact-global"),
}
"""Rows that are what a user would have alone, and what one model for all is; the first counts."""


@dataclass(frozen=True)
class Hurt:
    """The users of a row who would be better off under another.

    Parameters
    ----------
    than : that other row.
    users : who is worse off by more than a tie, the most hurt first.
    share : of those that both rows judge, `compared` of them.
    beyond_noise : those of `users` whose loss is more than 1.645 standard errors of the difference,
        taken from their test samples; None where such errors are not known.
    """

    than: str
    share: float
    users: list[str] = field(default_factory=list)
    compared: int = 0
    beyond_noise: list[str] | None = None

    def json(self) -> dict[str, Any]:
        """As files have it."""
        return {**asdict(self), "share_beyond_noise": self.share_beyond_noise}

    @property
    def share_beyond_noise(self) -> float | None:
        """The share of users that chance does not explain."""
        if self.beyond_noise is None or not self.compared:
            return None
        return len(self.beyond_noise) / self.compared


@dataclass(frozen=True)
class Row:
    """A row as it is compared: its name, measure, users' values and their standard errors.

    `guess` is what one constant answer a user scores: where models fit without error, errors are
    rounding, and nobody is better or worse off.
    """

    name: str
    measure: Measure
    values: Mapping[str, float]
    errors: Mapping[str, float] = field(default_factory=dict)
    guess: float = 0.0


def hurt(row: Row, rows: Mapping[str, Row]) -> dict[str, Hurt]:
    """The users hurt in a row, beside each reference that is among the rows."""
    found = {}
    for kind, names in REFERENCES.items():
        also = NEW_SUFFIX if row.name.endswith(NEW_SUFFIX) else ""
        there = [rows[name + also] for name in names if name + also in rows]
        if there and there[0].name != row.name and (one := compared(row, there[0])):
            found[kind] = one
    return found


def hurts(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Hurt]]:
    """The users hurt in each row of a table, as files have these."""
    rows = {}
    for result in results:
        name, measure = str(result["strategy"]), measure_of(result)
        errors = result.get("per_user_errors", {}).get(measure.name, {})
        guess = (result.get("baseline") or {}).get("mean", 0.0)
        rows[name] = Row(name, measure, result["per_user"], errors, guess)
    return {name: hurt(row, rows) for name, row in rows.items()}


def compared(row: Row, other: Row) -> Hurt | None:
    """The users worse off in a row than in another one; None if no user is in both."""
    users = [user for user in row.values if user in other.values]
    if not users or row.measure != other.measure:
        return None
    lost = {user: loss(row, other, user) for user in users}
    worse = [user for user in users if lost[user] > tie(row, other, user)]
    worse.sort(key=lambda user: -lost[user])
    known = bool(row.errors and other.errors)
    sure = [user for user in worse if known and lost[user] > CERTAIN * error(row, other, user)]
    return Hurt(other.name, len(worse) / len(users), worse, len(users), sure if known else None)


def loss(row: Row, other: Row, user: str) -> float:
    """The difference by which users are worse in a row than in another."""
    return float(row.measure.merit(other.values[user]) - row.measure.merit(row.values[user]))


def tie(row: Row, other: Row, user: str) -> float:
    """The difference up to which a user's two values are equal."""
    least = max(NO_DIFFERENCE * abs(row.guess), TIE * 1e-12)
    return max(TIE * abs(row.values[user]), TIE * abs(other.values[user]), least)


def error(row: Row, other: Row, user: str) -> float:
    """The standard error of a user's difference, as if the two rows had test samples of their own.

    They have the same ones, so that the true one is mostly smaller: who is named is named rightly.
    """
    return math.hypot(row.errors.get(user, math.inf), other.errors.get(user, math.inf))
