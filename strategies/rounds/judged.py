"""An evaluation, read: each user's measures, the users without test samples, a guess's score.

Users without test samples take part in training and are asked as all others are; they count in no
mean, and are named.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from corsage.core.arrays import Bools, Floats
from corsage.core.counts import EXAMPLES
from corsage.core.distribution import Spread, spread
from corsage.core.errors import RoundFailed
from corsage.core.measures import ADAPTATION_STEPS, Measure, baseline_of
from corsage.core.messages.replies import Replies

if TYPE_CHECKING:
    from corsage.strategies.rounds.base import Strategy

OWN_CLASS = "each user's own most frequent class"
OWN_MEAN = "each user's own mean"


@dataclass(frozen=True)
class Scored:
    """One measure of one row of the table.

    Parameters
    ----------
    score : over the users that it counts; None if there are none.
    pooled : of all their test samples together; None if sums over users do not say it.
    per_user : each user's value.
    """

    score: Spread | None
    pooled: float | None
    per_user: dict[str, float] = field(default_factory=dict)

    @property
    def users(self) -> int:
        """The number of users that are counted."""
        return len(self.per_user)

    def json(self) -> dict[str, Any]:
        """As files have it, without the users one by one."""
        over = asdict(self.score) if self.score else {"mean": None}
        return {**over, "pooled": self.pooled, "users": self.users}


@dataclass(frozen=True)
class Baseline:
    """The score of no model at all: one answer a user, the best for its training labels.

    Parameters
    ----------
    answer : which one, in words.
    mean : over the same users as the row's own measure.
    means : of every measure.
    """

    answer: str
    mean: float
    means: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Judged:
    """All users of an evaluation that have test samples.

    Parameters
    ----------
    measures : what they are judged by; the first is the row's own.
    users, sizes : their names and test samples.
    values : each measure of each of them, NaN where its test data have none.
    counts : what they reported.
    untested : those without test samples.
    """

    measures: tuple[Measure, ...]
    users: list[str]
    sizes: Floats
    values: Mapping[str, Floats]
    counts: Mapping[str, Floats]
    untested: list[str]

    @property
    def own(self) -> Measure:
        """The row's measure."""
        return self.measures[0]

    @property
    def counted(self) -> Bools:
        """Mark the users that have the row's measure."""
        return np.isfinite(self.values[self.own.name])

    @property
    def first(self) -> Floats:
        """The row's measure of the users that have it."""
        return self.values[self.own.name][self.counted]

    @property
    def loss(self) -> Floats:
        """The mean test loss of each user."""
        return self.counts["loss"]

    def scored(self, measure: Measure) -> Scored:
        """One measure over the users."""
        values = self.values[measure.name]
        finite = np.isfinite(values)
        if not finite.any():
            return Scored(None, None)
        names = self.users if finite.all() else compress(self.users, finite.tolist())
        each = dict(zip(names, values[finite].tolist(), strict=True))
        return Scored(spread(values[finite]), measure.pooled(self.counts), each)

    def baseline(self) -> Baseline | None:
        """The score of one answer a user; None if a node did not say."""
        means = {}
        for measure in self.measures:
            there = np.isfinite(self.values[measure.name])
            if baseline_of(measure) in self.counts and there.any():
                means[measure.name] = float(self.counts[baseline_of(measure)][there].mean())
        if self.own.name not in means:
            return None
        return Baseline(OWN_CLASS if self.own.classes else OWN_MEAN, means[self.own.name], means)

    @property
    def adaptation(self) -> float:
        """Gradients that a user computed for this evaluation, on average."""
        steps = self.counts.get(ADAPTATION_STEPS.name)
        return 0.0 if steps is None else float(steps.mean())


def judged(replies: Replies, measures: Sequence[Measure]) -> Judged:
    """An evaluation's replies under some measures.

    RoundFailed if no user has what the first of them needs: there is nothing to report.
    """
    n = replies.metrics[EXAMPLES]
    tested = n > 0
    places = np.flatnonzero(tested)
    counts = {name: values[places] for name, values in replies.metrics.items()}
    result = Judged(
        measures=tuple(measures),
        users=[replies.users[place] for place in places],
        sizes=n[places],
        values={measure.name: measure.user(counts) for measure in measures},
        counts=counts,
        untested=[replies.users[place] for place in np.flatnonzero(~tested)],
    )
    if not len(places):
        raise RoundFailed(
            f"no user that could be evaluated has test samples ({len(n)} have none): set "
            "test-fraction above 0, or give users more samples."
        )
    if not result.counted.any():
        own = result.own
        raise RoundFailed(
            f"measures={own.name}: no user's test samples have {own.needs}; put another measure "
            "first."
        )
    return result


def with_others(replies: Replies, before: Replies | None, users: Collection[str]) -> Replies:
    """An evaluation, with what was seen before of those `users` who were not asked in it.

    Means over users would else be of others each time.
    """
    if before is None or len(replies.users) + len(replies.dropped) >= len(users):
        return replies
    rest = set(users).difference(replies.users, replies.dropped)
    places = [place for place, user in enumerate(before.users) if user in rest]
    metrics = {
        name: np.concatenate([values, before.metrics[name][places]])
        for name, values in replies.metrics.items()
        if name in before.metrics
    }
    known = [*replies.users, *(before.users[place] for place in places)]
    return replace(replies, users=known, metrics=metrics)


def steps_taken(strategy: Strategy[Any, Any], evaluation: Judged) -> float | None:
    """Gradients that a user computed on average, for its training and for this evaluation.

    New users had no training. None where the method does not count its steps.
    """
    done, users = strategy.progress.gradient_steps, strategy.members.users
    if done is None:
        return evaluation.adaptation or None
    new = not set(users).intersection(evaluation.users)
    return evaluation.adaptation + (0.0 if new else done / max(len(users), 1))
