"""What the server of Async-L2GD knows and does alone: centres and maps, or the users' models.

Where gamma_i is the same in a cluster, aggregation steps are an affine map
theta_i <- factor_j theta_i + shift_j of all its users, and centres move among themselves. The
server keeps the centres and each cluster's map until its users next learn; then they hear of it, do
their local steps, and send their mean (`CentresAndMaps`).

Where gamma_i differs inside a cluster, its centre does not stand still while users come closer:
then the users' models are rows at the server, which does all steps but the local ones
(`UserModels`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from corsage.core.arrays import Array, Arrays, Floats, Ints
from corsage.solvers.known_clusters.coalescing import (
    Affine,
    compose,
    global_map,
    replay_global,
    replay_within,
    within_map,
)
from corsage.solvers.known_clusters.coins import Walk
from corsage.strategies.known_clusters.cohorts import Cohort
from corsage.strategies.known_clusters.coins import CoinState
from corsage.strategies.known_clusters.conversation import Answer, ClusterScript, Request
from corsage.strategies.known_clusters.schedule import CoinSchedule, legs
from corsage.strategies.rounds.federation import Federation


def nobody() -> Floats:
    """No rows yet."""
    return np.empty((0, 0))


@dataclass
class AsyncL2GDState(CoinState):
    """What the server of Async-L2GD remembers.

    Parameters
    ----------
    centres : thbar_j (k, d), in the order of the clusters' numbers.
    factor, shift : theta_i <- factor_j theta_i + shift_j, what cluster j's users have not heard of.
    users, theta : theta_i (n, d) and whose they are, where users differ in gamma.
    """

    centres: Floats = field(default_factory=nobody)
    factor: Floats = field(default_factory=lambda: np.empty(0))
    shift: Floats = field(default_factory=nobody)
    users: list[str] = field(default_factory=list)
    theta: Floats = field(default_factory=nobody)

    @classmethod
    def beginning(cls, model: Array) -> AsyncL2GDState:
        """thbar = theta^0, and nothing else."""
        none = np.empty((0, len(model)))
        return cls(model, centres=none, shift=none, theta=none)

    def place(self, cluster: str) -> int | None:
        """The row of a cluster; None if none of its users was part of a round yet."""
        known = self.clusters.known[: len(self.centres)]
        return known.index(cluster) if cluster in known else None


class L2GDServer(ABC):
    """The server in one round.

    Parameters
    ----------
    federation, schedule : who takes part, and with which coins and steps.
    state : what is remembered, and changed here.

    Attributes
    ----------
    reach : the largest norm of a model that users told of in this round.
    """

    def __init__(
        self, federation: Federation, schedule: CoinSchedule, state: AsyncL2GDState
    ) -> None:
        self.federation, self.schedule, self.state = federation, schedule, state
        self.reach = 0.0

    @property
    def names(self) -> list[str]:
        """The clusters that train now."""
        return self.schedule.present.names

    @abstractmethod
    def global_steps(self, steps: int) -> None:
        """Line 7, so many times, for all users."""

    @abstractmethod
    def walk(self, j: int, walk: Walk, first: int) -> ClusterScript[None]:
        """Lines 10 to 16 for cluster j, from iteration `first` to the next global step."""

    def enter(self) -> None:
        """Clusters that are new begin at the middle."""
        state = self.state
        new = len(state.clusters.known) - len(state.centres)
        middle = np.tile(state.model.astype(np.float64), (new, 1))
        state.centres = np.concatenate([state.centres, middle])
        state.factor = np.concatenate([state.factor, np.zeros(new)])
        state.shift = np.concatenate([state.shift, middle])

    def end_round(self) -> None:
        """The middle."""
        state, places = self.state, self.schedule.present.places
        middle = self.schedule.hierarchy.weights @ state.centres[places]
        state.model = middle.astype(state.model.dtype)

    def shown(self, cohorts: Sequence[Cohort]) -> list[Request]:
        """What cohorts need to find their users' models, and the pull of new users."""
        strengths, maps = self.state.strengths, map(self.pending, cohorts)
        return [
            Request(cohort, self.row(told), {"gamma": strengths.typical_gamma(cohort)})
            for cohort, told in zip(cohorts, maps, strict=True)
        ]

    def pending(self, cohort: Cohort) -> Affine:
        """The map that a cohort has not heard of; one without models begins at the centre."""
        state, place = self.state, self.state.place(cohort.cluster)
        if place is None:
            return Affine(0.0, state.model)
        if not self.federation.progress.versions.get(cohort.name):
            return Affine(0.0, state.centres[place])
        return Affine(state.factor[place], state.shift[place])

    def row(self, told: Affine) -> Arrays:
        """A map as it is sent."""
        dtype = self.state.model.dtype
        return {"factor": np.asarray(told.factor, dtype), "shift": np.asarray(told.shift, dtype)}

    def request(self, cohort: Cohort, told: Affine, options: dict[str, Any]) -> Request:
        """A map, and what to do then; the mean of the cohort's models comes back."""
        return Request(cohort, self.row(told), options, {"mean": self.state.model})

    def heard(self, answers: list[Answer]) -> list[Answer]:
        """Answers, of which the reach is noted."""
        self.reach = max(self.reach, *(answer.metrics["reach"] for answer in answers))
        return answers

    def count(self, cohorts: list[Cohort], trips: int) -> None:
        """A round trip is a vector and a number down, a vector up, for every user."""
        size, users = self.state.model.nbytes, sum(len(cohort.users) for cohort in cohorts)
        traffic = self.federation.progress.traffic
        traffic.bytes_down += trips * users * (size + 8)
        traffic.bytes_up += trips * users * size
        traffic.messages += 2 * trips * users


class CentresAndMaps(L2GDServer):
    """Clusters whose users share a gamma."""

    def global_steps(self, steps: int) -> None:
        """Line 7: centres move, maps grow."""
        if not steps:
            return
        state, here = self.state, self.schedule.present.places
        rate, weights = self.schedule.cluster_rates, self.schedule.hierarchy.weights
        factor, shift, moved = global_map(
            state.centres[here], weights, rate.middle, rate.centre, steps
        )
        told = compose(Affine(state.factor[here], state.shift[here]), Affine(factor, shift))
        state.factor[here], state.shift[here], state.centres[here] = *told, moved

    def walk(self, j: int, walk: Walk, first: int) -> ClusterScript[None]:
        """Steps to the centre grow the map (line 13); then users hear of it and learn (line 15).

        A node that hosts all of the cluster takes the whole walk at once.
        """
        state, place = self.state, self.schedule.present.places[j]
        cohorts, rate = self.schedule.present.groups[self.names[j]], self.schedule.cluster_rates
        c, step = float(rate.within[j]), float(rate.local[j])
        for leg in legs(walk, first, whole=len(cohorts) == 1):
            now = Affine(state.factor[place], state.shift[place])
            now = compose(now, within_map(state.centres[place], c, leg.to_centre))
            state.factor[place], state.shift[place] = now
            if leg.trips:
                options = {"walk": leg.runs, "step": step, "pull": c}
                answers = yield [self.request(o, self.pending(o), options) for o in cohorts]
                state.centres[place] = mean(self.heard(answers))
                state.factor[place], state.shift[place] = 1.0, 0.0
                self.count(cohorts, leg.trips)


class UserModels(L2GDServer):
    """Clusters whose users differ in gamma: each user is a cohort, and its model a row."""

    def enter(self) -> None:
        """New users begin at their cluster's centre."""
        super().enter()
        state, known = self.state, set(self.state.users)
        new = [cohort for cohort in self.schedule.present.cohorts if cohort.name not in known]
        places = [state.clusters.known.index(cohort.cluster) for cohort in new]
        state.theta = np.concatenate([state.theta, state.centres[places]])
        state.users = [*state.users, *(cohort.name for cohort in new)]

    @cached_property
    def row_of(self) -> dict[str, int]:
        """Each user's row; asked only after `enter`."""
        return {user: row for row, user in enumerate(self.state.users)}

    @cached_property
    def rows(self) -> Ints:
        """The rows of the users that train now, in the order of the hierarchy."""
        return np.array([self.row_of[cohort.name] for cohort in self.schedule.present.cohorts])

    def global_steps(self, steps: int) -> None:
        """Line 7 for every user."""
        theta, schedule = self.state.theta, self.schedule
        moved = replay_global(theta[self.rows], schedule.hierarchy, schedule.rates, steps)
        theta[self.rows] = moved

    def walk(self, j: int, walk: Walk, first: int) -> ClusterScript[None]:
        """Line 13 is done here; for local steps (line 15) users get their models and send them."""
        theta, hierarchy, rate = self.state.theta, self.schedule.hierarchy, self.schedule.rates
        members, cohorts = hierarchy.members(j), self.schedule.present.groups[self.names[j]]
        rows, gamma, c = self.rows[members], hierarchy.gamma[members], rate.within[members]
        for leg in legs(walk, first, whole=False):
            theta[rows] = replay_within(theta[rows], gamma, c, leg.to_centre)
            if leg.trips:
                options = {"walk": leg.runs, "step": float(rate.local[j]), "pull": 0.0}
                answers = yield [self.request(o, self.pending(o), options) for o in cohorts]
                for answer in self.heard(answers):
                    theta[self.row_of[answer.cohort.name]] = answer.rows["mean"]
                self.count(cohorts, leg.trips)

    def end_round(self) -> None:
        """The centres, and the middle."""
        places, hierarchy = self.schedule.present.places, self.schedule.hierarchy
        self.state.centres[places] = hierarchy.centres(self.state.theta[self.rows])
        super().end_round()

    def pending(self, cohort: Cohort) -> Affine:
        """The user's own model."""
        if cohort.name in self.row_of:
            return Affine(0.0, self.state.theta[self.row_of[cohort.name]])
        return super().pending(cohort)


def mean(answers: list[Answer]) -> Floats:
    """The centre, out of the cohorts' means."""
    sizes = np.array([len(answer.cohort.users) for answer in answers], np.float64)
    means = np.stack([answer.rows["mean"] for answer in answers]).astype(np.float64)
    return np.asarray(sizes @ means / sizes.sum())
