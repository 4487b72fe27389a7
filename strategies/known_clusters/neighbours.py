"""The mixed model beside its neighbours: one model for all, one a cluster, one a user, two more.

They are (2.3) with strengths that are infinite or 0, solved at the same nodes after the last round,
and judged on the same test samples. Where the server has the sums of each user, random intercepts
alone and one centre for all clusters are found from them without another exchange. If one of these
models is better by more than its noise, record by record, it is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from corsage.core.arrays import Floats
from corsage.core.counts import EXAMPLES
from corsage.core.messages.replies import Replies
from corsage.core.registry import LIKELIHOODS
from corsage.solvers.known_clusters.variances.shapes import ONE
from corsage.strategies.known_clusters.clusters.cohorts import KnownClusters
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


MOST_SEARCHED = 1_000_000
"""n d^2 beyond which no variances of neighbours are searched for."""
RELEVANT = 1e-3
"""A share of the loss; what is gained by less is not worth another model, however certain it is."""


class Neighbour(NamedTuple):
    """A method as it is asked for, what it has, and the keys in which it differs."""

    name: str
    title: str
    keys: Mapping[str, Any]


def of_strengths(name: str, title: str, gamma: str, lam: str) -> Neighbour:
    """A neighbour whose strengths are given."""
    return Neighbour(
        f"strategy={name}",
        title,
        {"known_gamma": gamma, "known_lambda": lam, "mixed_random": ("all",)},
    )


ONE_FOR_ALL = of_strengths("exact-global", "one model for all", "inf", "inf")
ONE_A_CLUSTER = of_strengths("exact-cluster", "one model a cluster", "inf", "0")
ONE_A_USER = of_strengths("exact-local", "one model a user", "0", "0")
INTERCEPTS = Neighbour(
    "mixed-random=intercept", "random intercepts alone", {"mixed_random": ("intercept",)}
)
ONE_CENTRE = Neighbour(
    "mixed-grouping=all", "one centre for all clusters", {"mixed_grouping": "all"}
)


def plain(value: float, digits: int) -> str:
    """So many digits of a number, without a power of ten where it is one that people read."""
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:.15g}" if rounded == 0 or 1e-4 <= abs(rounded) < 1e6 else f"{rounded:g}"


@dataclass(frozen=True)
class Beside:
    """A neighbour's loss less that of the mixed model: mean over records, and standard error."""

    neighbour: Neighbour
    loss: float
    gap: float
    error: float

    @property
    def better(self) -> bool:
        """By more than its noise."""
        return self.gap < -max(NOISE_ERRORS * self.error, RELEVANT * self.loss)

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
        return [Finding("beside its neighbours: mean loss of test records", rows)]

    @property
    def told(self) -> str:
        """The better neighbour in words; empty: none is."""
        if self.best is None:
            return ""
        best = self.best
        return (
            f"{best.neighbour.name}: on these data {best.neighbour.title} is better, a loss of "
            f"{best.loss:.4g} for {self.own:.4g} over the same test records"
        )


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
    for neighbour in around(solution):
        theirs = yield from judged(solution, neighbour)
        own, other, records = of_both(mine, theirs, solution.state.aside.named)
        if len(own) < FEWEST_JUDGED:
            return None
        found.append(beside(neighbour, own, other, records))
    some = (mine.metrics[EXAMPLES] > 0) & ~np.isin(mine.users, solution.state.aside.named)
    return Neighbours(
        float(np.average(mine.metrics["loss"][some], weights=mine.metrics[EXAMPLES][some])), found
    )


def around(solution: MixedSolution) -> list[Neighbour]:
    """Neighbours that differ from the mixed model, as far as they cost little."""
    several, varies = len(solution.present.names) > 1, solution.varies
    found = [ONE_FOR_ALL, *[ONE_A_CLUSTER] * several, ONE_A_USER]
    sums = solution.state.at_hand
    work = len(sums.users) * solution.size**2
    if not (solution.exact and work <= MOST_SEARCHED and sums.are_of(solution.present)):
        return found
    slopes = solution.size > 1 if varies is None else bool(varies[-1]) and varies.sum() > 1
    if solution.job.config.model.intercept and slopes:
        found.append(INTERCEPTS)
    return [*found, *[ONE_CENTRE] * several]


def wanted(solution: MixedSolution) -> bool:
    """True if the strengths were found, not given, there are exchanges to spare, and rows held out.

    On the rows that models were fitted to, each user alone is always the best.
    """
    if not solution.job.config.data.test_fraction:
        return False
    at_home = solution.job.members.at_home
    asked = {"simulations": at_home, "always": True, "never": False}
    alone = solution.job.loss in LIKELIHOODS or bool(solution.held)
    return asked[solution.keys.mixed_neighbours] and solution.keys.both_estimated and not alone


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
    own = solution.job.beside("mixed-model", neighbour.name)
    own.traffic = Traffic()
    keys = replace(solution.keys, mixed_intervals="never", **neighbour.keys)
    given = "known_gamma" in neighbour.keys or keys.mixed_likelihood == "quasi"
    keys = replace(keys, mixed_likelihood="quasi" if given else "auto")
    if kinds := solution.state.estimates.covariance.kinds:  # of the users' shape, not a new choice
        keys = replace(keys, mixed_variances=ONE if neighbour is INTERCEPTS else kinds[0])
    state: MixedModelState = type(solution.state).of_size(solution.size)
    clusters = solution.clusters
    if neighbour is ONE_CENTRE:
        clusters = KnownClusters(own, together=True)
    else:
        state.clusters = solution.state.clusters  # who is where is known, and stays as it is
    delivers = not solution.exact  # else models follow from the centres, whatever users keep
    other = MixedSolution(own, clusters, keys, state, delivers)
    where = {user: one.cluster for one in other.present.cohorts for user in one.users}
    state.sums = solution.state.at_hand.moved(where)
    state.aside = replace(solution.state.aside, settled=True)
    yield from other.solved(NEIGHBOUR_ROUNDS)
    return (yield judging(other))


def of_both(mine: Replies, theirs: Replies, aside: Sequence[str]) -> tuple[Floats, Floats, Floats]:
    """The mean losses of users that are in both replies, and how many test samples these are of.

    What a user says that is set `aside` counts here as little as its sums do.
    """
    place = np.arange(len(mine.users))
    if mine.users != theirs.users:
        places = {user: place for place, user in enumerate(theirs.users)}
        place = np.array([places.get(user, -1) for user in mine.users], np.int64)
    both = (place >= 0) & (mine.metrics[EXAMPLES] > 0) & ~np.isin(mine.users, aside)
    own, other = mine.metrics["loss"][both], theirs.metrics["loss"][place[both]]
    return own, other, mine.metrics[EXAMPLES][both].astype(np.float64)


def beside(neighbour: Neighbour, own: Floats, other: Floats, records: Floats) -> Beside:
    """The mean difference over records, of each its own; those of a user are not independent."""
    gaps, share, n = other - own, records / records.sum(), len(own)
    gap = float(share @ gaps)
    error = float(np.sqrt(n / (n - 1) * np.square(share * (gaps - gap)).sum()))
    return Beside(neighbour, float(share @ other), gap, error)
