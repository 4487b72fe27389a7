"""The base of the coin-throwing methods' servers, and their watch over long steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Generic, NoReturn, TypeVar

import numpy as np

from corsage.core.arrays import Arrays
from corsage.core.counts import LARGEST_SQUARE, Number
from corsage.core.errors import RoundFailed
from corsage.core.measures import GRADIENT_STEPS
from corsage.core.messages.replies import Replies, name_users
from corsage.core.registry import attachment
from corsage.solvers.known_clusters.coins.flips import Stretch, Walk
from corsage.strategies.known_clusters.clusters.cohorts import Cohort, KnownClusters
from corsage.strategies.known_clusters.coins.coin_keys import CoinState
from corsage.strategies.known_clusters.coins.conversation import (
    Answer,
    ClusterScript,
    Request,
    ask_each,
    check_enough,
)
from corsage.strategies.known_clusters.coins.schedule import CoinSchedule
from corsage.strategies.rounds.job import Job
from corsage.strategies.rounds.turns import Script

S = TypeVar("S", bound=CoinState)
CONSTANTS = Number("smoothness", low=0.0), Number("convexity")
"""L and mu of a cohort, where they are known."""
REACH_METRIC = "reach"
STEEP = 1e3
"""Losses are too steep for the others' steps, in units of the median a sample."""
FEWEST_ANSWERS = 4
"""Cohorts of a cluster among whom it can be said who is far from the others."""
RUNAWAY = 1e8
"""A model this far out, in units of the first round's, has diverged; in that round, in units of
the model that it began with: one user's lie must not take the others so far.
"""


class CoinServer(Generic[S]):
    """The server in one round: what it does alone, asks and tells.

    Parameters
    ----------
    job, schedule : who takes part, and with which coins and steps.
    state : what is remembered, and changed here.

    Attributes
    ----------
    reaches : the norms of models that users told of in this round.
    """

    def __init__(self, job: Job, schedule: CoinSchedule, state: S) -> None:
        self.job, self.schedule, self.state = job, schedule, state
        self.reaches: list[float] = []

    # What a method says.

    def opening(self) -> Script[None]:
        """Questions before the first round, when the settings are fixed."""
        yield from ()

    def enter(self) -> None:
        """Those who are new get their places."""
        raise NotImplementedError

    def global_steps(self, steps: int) -> None:
        """So many iterations with xi_0 = 1."""
        raise NotImplementedError

    def walk(self, j: int, walk: Walk, first: int, part: Stretch) -> ClusterScript[None]:
        """Cluster j's iterations with xi_0 = 0, from `first` on."""
        raise NotImplementedError

    def end_round(self, part: Stretch) -> None:
        """The end of a round."""
        raise NotImplementedError

    def shown(self, cohort: Cohort) -> Request:
        """The message from which a cohort finds its users' models."""
        raise NotImplementedError

    # What methods build on.

    def walks(self, part: Stretch) -> dict[str, ClusterScript[None]]:
        """Each cluster's script of a round."""
        names, first = self.schedule.present.names, part.first + part.globals
        return {
            name: self.walk(j, walk, first, part)
            for j, (name, walk) in enumerate(zip(names, part.walks, strict=True))
        }

    def cohorts(self, j: int) -> list[Cohort]:
        """Those of cluster j."""
        present = self.schedule.present
        return present.groups[present.names[j]]

    @property
    def numbers(self) -> tuple[Number, ...]:
        """The numbers that a cohort reports: its steps, and the largest norm of its models.

        That must not be far out.
        """
        return Number(REACH_METRIC, low=0.0, high=self.far), GRADIENT_STEPS

    @property
    def far(self) -> float:
        """The reach beyond which models are too far out."""
        begin = max(float(np.linalg.norm(self.state.model)), 1.0)
        return min(RUNAWAY * (self.state.reach or begin), LARGEST_SQUARE)

    def fault(self, rows: Arrays) -> str:
        """A mean of models is not further out than one of them may be, whatever its reach says."""
        models = [rows[name] for name in ("mean", "y") if name in rows]
        far = max((float(np.linalg.norm(model)) for model in models), default=0.0)
        return f"its models are {far:.3g} far out" if far > self.far else ""

    def heard(self, answers: list[Answer]) -> list[Answer]:
        """Answers that are sound, of which the reach is noted."""
        answers = sound(self.job, self.state, answers)
        self.reaches += [answer.metrics[REACH_METRIC] for answer in answers]
        return answers

    def count(self, cohorts: list[Cohort], trips: int, down: int, up: int) -> None:
        """Count round trips, and the bytes of each user in all of them."""
        traffic, users = self.job.traffic, sum(len(c.users) for c in cohorts)
        traffic.bytes_down += users * down
        traffic.bytes_up += users * up
        traffic.messages += 2 * trips * users


def sound(job: Job, state: CoinState, answers: list[Answer]) -> list[Answer]:
    """A cluster's answers without those that are far from all others.

    Models by ten lengths of the others', gradients by `STEEP` a sample: users may differ. Who is
    left out keeps its own model, and its cluster's centre is that of the others.
    """
    rules, far = attachment("robust"), np.zeros(len(answers), bool)
    if rules is None or len(answers) < FEWEST_ANSWERS:
        return answers
    members = job.members.everybody
    sizes = [max(members[user].train for user in answer.cohort.users) for answer in answers]
    for name in answers[0].rows:
        rows = np.stack([answer.rows[name] for answer in answers]).astype(np.float64)
        if name == "slope":
            far |= rules.outlying(rows / np.array(sizes)[:, None], STEEP)
        else:
            usual = float(np.median(np.linalg.norm(rows, axis=1)))
            far |= rules.outlying(rows, least=usual)
    if far.any():
        names = [answer.cohort.name for answer, out in zip(answers, far, strict=True) if out]
        state.aside = list(dict.fromkeys([*state.aside, *names]))
        job.note(f"{name_users(names)} set aside: far from all others in the cluster")
    return [answer for answer, out in zip(answers, far, strict=True) if not out]


@dataclass(frozen=True)
class StepCheck:
    """Notices steps that are too long: models run away, or are not finite any more."""

    job: Job
    state: CoinState

    def check(self, number: int, replies: Replies, cohorts: int) -> None:
        """RoundFailed if too few users answered; what is not finite may be no fault of theirs.

        It is that of one of them if most of the cohorts have nothing to complain of.
        """
        settings = self.state.settings
        long = settings.eta > settings.safe or not self.job.convex
        far = [why for why in replies.dropped.values() if why.startswith(f"{REACH_METRIC} is")]
        lost = [why for why in replies.dropped.values() if long and "not finite" in why]
        if far + lost and 2 * len(far + lost) >= cohorts:
            self._fail()
        check_enough(self.job, number, replies)

    def remember(self, reaches: list[float]) -> None:
        """The median norm of users' models in the first round is what far is: nobody's alone."""
        self.state.reach = self.state.reach or max(float(np.median(reaches or [0.0])), 1.0)

    def _fail(self) -> NoReturn:
        """Say which step would be safe."""
        settings, job = self.state.settings, self.job
        what = f"known-eta={settings.eta:g} is too long a step"
        if job.convex:
            what += f", {settings.safe:.3g} is the largest safe one"
        else:
            what += f" for lr={job.config.train.lr:g}: lower one of them"
        place = self.state.iteration
        raise RoundFailed(f"{job.name} diverged after iteration {place}: {what}.")


def loss_constants(
    job: Job, clusters: KnownClusters, state: CoinState
) -> Script[tuple[float, float]]:
    """L and mu of the losses. A torch model's are not known: lr stands for 1/(2 L)."""
    present = clusters.meet(state.clusters)
    numbers = CONSTANTS if job.convex else ()
    asked = ask_each(job, present, partial(Request, options={"ask": "facts"}, numbers=numbers))
    replies = yield asked
    check = StepCheck(job, state)
    check.check(job.progress.round, replies, len(present.cohorts))
    if not job.convex:
        return 1 / (2 * job.config.train.lr), 0.0
    answers = [answer for group in asked.found.values() for answer in group]
    if refused := too_steep(job, answers):
        rest = [answer for answer in answers if answer.cohort.name not in refused]
        found = Replies([user for a in rest for user in a.cohort.users], dropped=refused)
        job.record(found, job.progress.round)
        check_enough(job, job.progress.round, found)
        cohorts = [a.cohort for a in answers if a.cohort.name in refused]
        state.clusters.refused += [user for cohort in cohorts for user in cohort.users]
        answers = rest
    facts = [answer.metrics for answer in answers]
    return max(f["smoothness"] for f in facts), min(f["convexity"] for f in facts)


def too_steep(job: Job, answers: list[Answer]) -> dict[str, str]:
    """The cohorts whose L is far from all others', and why: one step is for all of them.

    Steps and rounds are made for the largest L, so a single one could let nobody move. With losses
    that are sums L grows with the samples, which the server knows.
    """
    if len(answers) < 3:  # of two nobody can say which one is wrong
        return {}
    sums, members = job.config.model.loss_scale == "sum", job.members.everybody
    most = [max(members[u].train for u in a.cohort.users) if sums else 1 for a in answers]
    steep = np.array([a.metrics["smoothness"] for a in answers]) / np.array(most)
    limit = STEEP * float(np.median(steep))
    return {
        answer.cohort.name: f"smoothness is {answer.metrics['smoothness']:.3g}, more than "
        f"{STEEP:g} times that of most others: it takes no part"
        for answer, own in zip(answers, steep, strict=True)
        if own > limit > 0
    }
