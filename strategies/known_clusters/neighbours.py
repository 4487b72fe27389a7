"""The mixed model beside its neighbours: one model for all, one a cluster, one a user.

They are (2.3) with strengths that are infinite or 0, solved at the same nodes after the last round,
and judged on the same test samples. If one of them is better by more than its noise, it is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from corsage.core.arrays import Floats
from corsage.core.counts import EXAMPLES
from corsage.core.messages.replies import Replies
from corsage.strategies.known_clusters.coins.conversation import evaluations_of
from corsage.strategies.known_clusters.mixed_solution import MixedSolution
from corsage.strategies.rounds.algorithm import EVALUATED_AT_ONCE
from corsage.strategies.rounds.results import Finding
from corsage.strategies.rounds.state import Traffic
from corsage.strategies.rounds.turns import Script, Series

if TYPE_CHECKING:
    from corsage.strategies.known_clusters.mixed_state import MixedModelState

NOISE_ERRORS = 2.0
"""Standard errors of a mean difference beyond which it is no noise."""
NEIGHBOUR_ROUNDS = 12
"""Newton rounds that a neighbour may take: far more than it needs, where it has a minimiser."""
FEWEST_JUDGED = 5
"""Users with test samples without whom there is no noise to speak of."""


class Neighbour(NamedTuple):
    """A method, what it has, and its strengths."""

    strategy: str
    title: str
    gamma: str
    lam: str


ONE_FOR_ALL = Neighbour("exact-global", "one model for all", "inf", "inf")
ONE_A_CLUSTER = Neighbour("exact-cluster", "one model a cluster", "inf", "0")
ONE_A_USER = Neighbour("exact-local", "one model a user", "0", "0")


def plain(value: float, digits: int) -> str:
    """So many digits of a number, without a power of ten where it is one that people read."""
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:.15g}" if rounded == 0 or 1e-4 <= abs(rounded) < 1e6 else f"{rounded:g}"


@dataclass(frozen=True)
class Beside:
    """A neighbour's loss less that of the mixed model: mean over users, and standard error."""

    neighbour: Neighbour
    loss: float
    gap: float
    error: float

    @property
    def better(self) -> bool:
        """By more than its noise."""
        return self.gap < -NOISE_ERRORS * self.error

    @property
    def text(self) -> str:
        """In a line."""
        gap, error = plain(self.gap, 2), plain(self.error, 1)
        told = f"{self.loss:.5g} ({'+' if self.gap >= 0 else ''}{gap}, se {error})"
        return f"{told}; better by more than its noise" if self.better else told


@dataclass(frozen=True)
class Neighbours:
    """All of them, and the mixed model's own loss."""

    own: float
    beside: Sequence[Beside]

    @property
    def best(self) -> Beside | None:
        """The best of those that are better, if there are any."""
        better = [one for one in self.beside if one.better]
        return min(better, key=lambda one: one.gap, default=None)

    def findings(self) -> list[Finding]:
        """A row for each, and the name of what is better."""
        rows = [("mixed-model", f"{self.own:.5g}")]
        rows += [(one.neighbour.title, one.text) for one in self.beside]
        if self.best is not None:
            rows.append(("use", self.told))
        return [Finding("beside its neighbours: mean loss on users' test samples", rows)]

    @property
    def told(self) -> str:
        """The better neighbour in words; empty: none is."""
        if self.best is None:
            return ""
        name, title = self.best.neighbour.strategy, self.best.neighbour.title
        return f"strategy={name}: on these data {title} is better than personal models"


def compared(solution: MixedSolution, last: Replies | None) -> Script[Neighbours | None]:
    """All neighbours solved and judged; None where nobody asked, or too few can be judged.

    `last` is the last evaluation, of the models as they are: nobody is asked for it again.
    """
    if not wanted(solution):
        return None
    mine = last
    if mine is None or not whole(mine, solution):
        mine = yield judging(solution)
    found = []
    for neighbour in (
        (ONE_FOR_ALL, ONE_A_CLUSTER, ONE_A_USER)
        if len(solution.present.names) > 1
        else (ONE_FOR_ALL, ONE_A_USER)
    ):
        theirs = yield from judged(solution, neighbour)
        own, other = of_both(mine, theirs)
        if len(own) < FEWEST_JUDGED:
            return None
        found.append(beside(neighbour, own, other))
    return Neighbours(float(mine.metrics["loss"][mine.metrics[EXAMPLES] > 0].mean()), found)


def wanted(solution: MixedSolution) -> bool:
    """True if the strengths were found, not given, there are exchanges to spare, and rows held out.

    On the rows that models were fitted to, each user alone is always the best.
    """
    if not solution.job.config.data.test_fraction:
        return False
    at_home = solution.job.members.at_home
    asked = {"simulations": at_home, "always": True, "never": False}
    return asked[solution.keys.mixed_neighbours] and solution.own_sums.wanted


def whole(evaluation: Replies, solution: MixedSolution) -> bool:
    """True if all users were asked in it."""
    users = sum(len(cohort.users) for cohort in solution.present.cohorts)
    return len(evaluation.users) + len(evaluation.dropped) >= users


def judging(solution: MixedSolution) -> Series:
    """The exchanges in which all users judge their models."""
    cohorts, shown = solution.present.cohorts, solution.shown
    return Series(evaluations_of(solution.job, cohorts, shown, {}, EVALUATED_AT_ONCE))


def judged(solution: MixedSolution, neighbour: Neighbour) -> Script[Replies]:
    """A neighbour's loss at each user; what its exchanges cost is not the mixed model's."""
    own = solution.job.beside("mixed-model", neighbour.strategy)
    own.traffic = Traffic()
    keys = replace(solution.keys, known_gamma=neighbour.gamma, known_lambda=neighbour.lam)
    keys = replace(keys, mixed_random="all")
    state: MixedModelState = type(solution.state).of_size(solution.size)
    state.clusters = solution.state.clusters  # who is where is known, and stays as it is
    delivers = not solution.exact  # else models follow from the centres, whatever users keep
    other = MixedSolution(own, solution.clusters, keys, state, delivers)
    yield from other.solved(NEIGHBOUR_ROUNDS)
    return (yield judging(other))


def of_both(mine: Replies, theirs: Replies) -> tuple[Floats, Floats]:
    """The mean losses of users that are in both replies and have test samples."""
    place = np.arange(len(mine.users))
    if mine.users != theirs.users:
        places = {user: place for place, user in enumerate(theirs.users)}
        place = np.array([places.get(user, -1) for user in mine.users], np.int64)
    both = (place >= 0) & (mine.metrics[EXAMPLES] > 0)
    return mine.metrics["loss"][both], theirs.metrics["loss"][place[both]]


def beside(neighbour: Neighbour, own: Floats, other: Floats) -> Beside:
    """The mean difference over users."""
    gaps = other - own
    error = float(gaps.std(ddof=1) / np.sqrt(len(gaps)))
    return Beside(neighbour, float(other.mean()), float(gaps.mean()), error)
