"""Descents along users' sums of the mixed model of several classes, side by side; its strengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from corsage.core.arrays import Arrays, Floats
from corsage.core.counts import Number
from corsage.core.messages.replies import Replies
from corsage.solvers.known_clusters.centre_descent import Centres, Descent
from corsage.solvers.known_clusters.mixed_model import unpack
from corsage.solvers.known_clusters.multinomial import NO_FOLD
from corsage.solvers.losses.softmax_block import by_class, flat
from corsage.strategies.known_clusters.clusters.cohorts import Cohort, Present
from corsage.strategies.known_clusters.coins.conversation import (
    Answer,
    Request,
    ask_each,
    check_enough,
)
from corsage.strategies.known_clusters.mixed_state import AVERAGED, WITHHELD
from corsage.strategies.known_clusters.own_sums import note_floor
from corsage.strategies.rounds.job import Job
from corsage.strategies.rounds.turns import Script

STRENGTH_GRID: Mapping[str, tuple[float, ...]] = {
    "rho": (10.0, 1.0, 0.1, 0.01),
    "intercepts": (10.0, 1.0, 0.1, 0.01),
    "slopes": (np.inf, 100.0, 10.0, 1.0, 0.1),
    "cluster_intercepts": (np.inf, 10.0, 1.0, 0.1),
    "cluster_slopes": (np.inf, 100.0, 10.0, 1.0, 0.1),
}
"""Strengths that are tried, the strongest first, in units in which features have variance 1."""


@dataclass(frozen=True)
class Strength:
    """gamma of slopes and of intercepts, lambda of both, and rho, in units of `Scale`."""

    slopes: float = 100.0
    intercepts: float = 0.1
    cluster_slopes: float = np.inf
    cluster_intercepts: float = np.inf
    rho: float = 1.0


class Scale(NamedTuple):
    """The units of strengths: of slopes and of intercepts."""

    slopes: float
    intercepts: float

    @classmethod
    def of(cls, squares: Floats, intercept: bool, share: float) -> Scale:
        """Out of sum z z' (d, d), in which a record weighs `share`: features' mean variance."""
        own = np.diagonal(squares)
        if not intercept:
            return cls(share * float(own.mean()) or 1.0, share)
        around = own[:-1] / own[-1] - (squares[-1, :-1] / own[-1]) ** 2
        return cls(share * float(around.mean()) or 1.0, share)

    def raw(self, slopes: float, intercepts: float, varies: Floats, intercept: bool) -> Floats:
        """Strengths as they are in (2.3), by coefficient (d,); infinite where none may vary."""
        found = np.full(len(varies), slopes * self.slopes)
        if intercept:
            found[-1] = intercepts * self.intercepts
        return np.where(varies > 0, found, np.inf)

    def told(self, strength: float) -> tuple[float, float]:
        """A strength as it is in (2.3), in these units."""
        return strength / self.slopes, strength / self.intercepts


@dataclass
class Candidate:
    """A problem on its way down: its strengths, the fold that it leaves out, and what that cost."""

    strength: Strength
    centres: Centres
    descent: Descent
    fold: int = NO_FOLD
    held: tuple[float, float] = (0.0, 0.0)

    def over(self, enough: float) -> bool:
        """True if the slope is so small a share of the first one."""
        descent = self.descent
        return bool(descent.way.size) and (descent.stuck or descent.left <= enough)

    def told(self, value: float, slopes: Floats, held: Floats) -> None:
        """Take over the users' sums of the place that it looked at."""
        before = self.descent.value
        self.descent.told(*self.centres.whole(self.descent.next, value, slopes))
        if self.descent.value != before:
            self.held = float(held[0]), float(held[1])


ASK_SQUARES, ASK_SLOPES = "classes-begin", "classes"
"""What is asked: sums of squares, which the metric is made of; and sums at centres."""
MOST_DESCENT_EXCHANGES = 1000
"""Exchanges of one descent."""
Told = Callable[[Cohort, Strength], tuple[Floats, float]]
"""The pulls of a cohort's users by coefficient (d,), and the ridge of their losses."""


class Shape(NamedTuple):
    """The shape of a model: its numbers, its classes, and whether it has intercepts."""

    size: int
    classes: int
    intercept: bool

    @property
    def d(self) -> int:
        """Coefficients of one class."""
        return self.size // self.classes

    def matrix(self, model: Floats) -> Floats:
        """A flat model (P,) as (d, C)."""
        rows = by_class(torch.from_numpy(model[None]), self.classes, self.d - self.intercept)
        return np.asarray(rows[0].T)

    def flat(self, models: Floats) -> Floats:
        """Models (n, d, C) as flat ones (n, P)."""
        rows = torch.from_numpy(np.ascontiguousarray(models)).mT
        return np.asarray(flat(rows, self.d - self.intercept))


class Descents:
    """The exchanges of one round; who does not answer is not asked again in it.

    Parameters
    ----------
    job, shape : the run, and the shape of its models.
    asked : who is asked.

    Attributes
    ----------
    names, squares : the clusters that problems are of, with their sum z z' (k, d, d).
    weights : of all records of each class (C,).
    """

    def __init__(self, job: Job, asked: Present, shape: Shape) -> None:
        self.job, self.asked, self.shape = job, asked, shape
        self.names, self.squares = list[str](), np.zeros((0, shape.d, shape.d))
        self.weights = np.zeros(shape.classes)

    def begin(self) -> Script[Replies]:
        """Ask for the squares, and how much there is of each class."""
        d = self.shape.d
        template = {"squares": np.zeros(d * (d + 1) // 2), "classes": self.weights}
        answers, replies = yield from self._ask(
            ASK_SQUARES, lambda _: {}, template, (AVERAGED, WITHHELD)
        )
        note_floor(self.job, [answer for own in answers.values() for answer in own])
        self.names = [*answers]
        sums = [added(own) for own in answers.values()]
        self.squares = unpack(np.stack([own["squares"] for own in sums]), d)
        self.weights = np.sum([own["classes"] for own in sums], axis=0)
        return replies

    def descend(
        self,
        candidates: list[Candidate],
        told: Told,
        enough: float,
        most: int = MOST_DESCENT_EXCHANGES,
    ) -> Script[None]:
        """Go down with all of them, side by side, until `enough` of the first slope is left."""
        for _ in range(most):
            going = [one for one in candidates if not one.over(enough)]
            if not going:
                return
            asked = self.asked
            sums = yield from self._sums(going, told)
            if self.asked is not asked:  # who is gone was in the sums before
                for one in candidates:
                    one.descent = Descent(one.descent.at, one.descent.first)
            for place, one in enumerate(going):
                self._tell(one, place, sums)

    def falls(self, one: Candidate, told: Told) -> Script[bool]:
        """True if twice the numbers are better: then there is no minimum to go down to."""
        there = Candidate(one.strength, one.centres, Descent(2 * one.descent.at), one.fold)
        yield from self.descend([there], told, 0.0, most=1)
        return there.descent.value < one.descent.value

    def _sums(self, going: list[Candidate], told: Told) -> Script[dict[str, Arrays]]:
        """Users' sums where candidates want to look, of each cluster that answers."""
        shape, k = self.shape, len(going)
        centres = [shape.flat(one.centres.models(one.descent.next)[0]) for one in going]
        by_name = dict(zip(self.names, np.stack(centres, 1), strict=True))
        template: Arrays = {
            "value": np.zeros(k), "held": np.zeros((k, 2)), "slopes": np.zeros((k, shape.size))
        }  # fmt: skip
        rows = partial(rows_of, going, told, by_name)
        answers, _ = yield from self._ask(ASK_SLOPES, rows, template)
        return {name: added(own) for name, own in answers.items()}

    def _tell(self, one: Candidate, place: int, sums: dict[str, Arrays]) -> None:
        """Hand a candidate its sums."""
        slopes = np.zeros((len(self.squares), self.shape.d, self.shape.classes))
        for name, own in sums.items():
            slopes[self.names.index(name)] = self.shape.matrix(own["slopes"][place])
        value = float(sum(own["value"][place] for own in sums.values()))
        one.told(value, slopes, np.sum([own["held"][place] for own in sums.values()], axis=0))

    def _ask(
        self,
        ask: str,
        rows: Callable[[Cohort], Arrays],
        template: Arrays,
        numbers: tuple[Number, ...] = (),
    ) -> Script[tuple[dict[str, list[Answer]], Replies]]:
        """One exchange: the answers of each cluster."""

        def request(cohort: Cohort) -> Request:
            return Request(cohort, rows(cohort), {"ask": ask}, template, numbers)

        asked = ask_each(self.job, self.asked, request, counted=True)
        replies = yield asked
        check_enough(self.job, self.job.progress.round + 1, replies)
        here = [answer.cohort for own in asked.found.values() for answer in own]
        names = [name for name in self.asked.names if name in asked.found]
        if len(here) < len(self.asked.cohorts):
            there = [cohort for cohort in self.asked.cohorts if cohort in here]
            self.asked = Present(names, [], there)
        return {name: asked.found[name] for name in names}, replies


def rows_of(
    going: list[Candidate], told: Told, by_name: Mapping[str, Floats], cohort: Cohort
) -> Arrays:
    """The centres that a cohort looks at, with their strengths."""
    strengths = [told(cohort, one.strength) for one in going]
    return {
        "centres": by_name[cohort.cluster],
        "folds": np.array([one.fold for one in going], np.int64),
        "pulls": np.stack([pulls for pulls, _ in strengths]),
        "ridges": np.array([ridge for _, ridge in strengths]),
    }


def added(answers: list[Answer]) -> Arrays:
    """The sums of some cohorts."""
    return {name: np.sum([a.rows[name] for a in answers], axis=0) for name in answers[0].rows}
