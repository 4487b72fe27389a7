"""Users who are worse off under one method than under another, such as on their own.

A mean says nothing of that: a method may lift it and still leave a third of the users with a worse
model than the one that they had alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from corsage.core.arrays import Floats
from corsage.core.measures import Measure, measure_of
from corsage.core.pairs.noise import NORMAL_QUANTILE, Sums, paired_errors, sums_of

Result = Mapping[str, Any]
TIE = 1e-6
"""Two values are a tie if they differ by no more than this share of them: rounding does that."""
NO_DIFFERENCE = 1e-9
"""Nor do they differ by less than this share of what one constant answer scores."""
ROW_ALONE, ROW_TOGETHER = "alone", "together"
NEW_SUFFIX = "+new"
"""How rows of new users end: they are compared with one another."""
OWN_SUFFIX = "+own"
"""How rows end in which every user has trained its own part at the end: those of `+ft` are so too,
and are compared with these."""
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
        of the same test samples under both rows; None where such errors are not known.
    unsure : of how many of `users` the error is not known, where it is of others.
    """

    than: str
    share: float
    users: list[str] = field(default_factory=list)
    compared: int = 0
    beyond_noise: list[str] | None = None
    unsure: int = 0

    def json(self) -> dict[str, Any]:
        """As files have it."""
        return {**vars(self), "share_beyond_noise": self.share_beyond_noise}

    @property
    def share_beyond_noise(self) -> float | None:
        """The share of users that chance does not explain."""
        if self.beyond_noise is None or not self.compared:
            return None
        return len(self.beyond_noise) / self.compared


@dataclass(frozen=True)
class Row:
    """A row as it is compared: its name, measure and users' values.

    `guess` is what one constant answer a user scores: where models fit without error, errors are
    rounding, and nobody is better or worse off. `sums` are the users' of their test samples, and
    those who are `untrained`, whose part of the model is as it was drawn, are not compared.
    """

    name: str
    measure: Measure
    values: Mapping[str, float]
    guess: float = 0.0
    sums: Sums | None = None
    untrained: frozenset[str] = frozenset()


def hurt(row: Row, rows: Mapping[str, Row]) -> dict[str, Hurt]:
    """The users hurt in a row, beside each reference that is among the rows."""
    found = {}
    for kind, names in REFERENCES.items():
        there = [rows[name] for name in alike(row.name, names) if name in rows]
        if there and there[0].name != row.name and (one := compared(row, there[0])):
            found[kind] = one
    return found


def alike(name: str, references: Sequence[str]) -> list[str]:
    """The rows that one is compared with, the first best: those of users who came as late."""
    if name.endswith(NEW_SUFFIX):
        return [reference + NEW_SUFFIX for reference in references]
    tuned = [reference + OWN_SUFFIX for reference in references if "+" in name]
    return [*tuned, *references]


def with_hurt(results: Sequence[Result]) -> list[Result]:
    """Rows of a table, each with the users hurt in it, if it does not have them yet."""
    beside = hurts(results)
    own = ({kind: hurt.json() for kind, hurt in beside[r["strategy"]].items()} for r in results)
    return [r if r.get("hurt") else {**r, "hurt": h} for r, h in zip(results, own, strict=True)]


def hurts(results: Sequence[Result]) -> dict[str, dict[str, Hurt]]:
    """The users hurt in each row of a table, as files have these."""
    rows = {}
    for result in results:
        name, measure = str(result["strategy"]), measure_of(result)
        guess = (result.get("baseline") or {}).get("mean", 0.0)
        untrained = frozenset(result.get("untrained", ()))
        own = measure, result["per_user"], guess, sums_of(result), untrained
        rows[name] = Row(name, *own)
    return {name: hurt(row, rows) for name, row in rows.items()}


def compared(row: Row, other: Row) -> Hurt | None:
    """The users worse off in a row than in another one; None if no user is trained in both."""
    without = row.untrained | other.untrained
    users = [user for user in row.values if user in other.values and user not in without]
    if not users or row.measure != other.measure:
        return None
    own, others = (np.array([one.values[user] for user in users]) for one in (row, other))
    lost = row.measure.merit(others) - row.measure.merit(own)
    at = np.flatnonzero(lost > ties(own, others, row.guess))
    at = at[np.argsort(-lost[at], kind="stable")]
    worse = [users[place] for place in at]
    share, noise = len(worse) / len(users), noises(row, other, worse)
    known = np.isfinite(noise)
    if row.sums is None or other.sums is None or (worse and not known.any()):
        return Hurt(other.name, share, worse, len(users))
    beyond = np.flatnonzero(known & (lost[at] > NORMAL_QUANTILE * noise))
    sure = [worse[place] for place in beyond]
    return Hurt(other.name, share, worse, len(users), sure, len(worse) - int(known.sum()))


def noises(row: Row, other: Row, users: list[str]) -> Floats:
    """The standard errors of users' differences; not finite where they are not known."""
    if row.sums is None or other.sums is None:
        return np.full(len(users), np.nan)
    own, others = (np.array([one.values[user] for user in users]) for one in (row, other))
    return paired_errors(row.measure, users, (row.sums, own), (other.sums, others))


def ties(own: Floats, others: Floats, guess: float) -> Floats:
    """The differences up to which users' two values are equal."""
    least = max(NO_DIFFERENCE * abs(guess), TIE * 1e-12)
    return np.maximum(TIE * np.maximum(np.abs(own), np.abs(others)), least)
