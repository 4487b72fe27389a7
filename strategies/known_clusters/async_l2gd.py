"""Async-L2GD: a coin for the network, and a coin for each known cluster.

Lyu et al. 2022, Algorithm 1, on their objective (2.1), as experiments/known_clusters has it
line by line: global steps towards the middle and the centres, steps to a cluster's centre, and
local steps.

All coins are drawn up front, and what needs no word from the users runs together. A round is a run
of global steps (line 7), and then each cluster's own walk to the next global step (lines 9 to 17),
for which alone clusters wait for each other.

Where gamma_i is the same in a cluster, aggregation steps are an affine map
theta_i <- factor_j theta_i + shift_j of all its users, and centres move among themselves. The
server keeps the centres and each cluster's map until its users next learn; then they hear of it, do
their local steps, and send their mean (`CentresAndMaps`).

Where gamma_i differs inside a cluster, its centre does not stand still while users come closer:
then the users' models are rows at the server, which does all steps but the local ones
(`UserModels`).

A user whose reply is missing stays where it is; one that comes late, or lost its model, begins at
its cluster's centre. Models that are not linear: lr stands for 1/(2 L), local steps are of SGD.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from corsage.core.arrays import Array, Arrays, Floats, Ints
from corsage.solvers.known_clusters.coins.coalescing import (
    Affine,
    compose,
    global_map,
    replay_global,
    replay_within,
    within_map,
)
from corsage.solvers.known_clusters.coins.flips import Stretch, Walk
from corsage.strategies.known_clusters.clusters.cohorts import Cohort
from corsage.strategies.known_clusters.coins.coin_keys import CoinKeys, CoinState
from corsage.strategies.known_clusters.coins.coin_method import CoinMethod
from corsage.strategies.known_clusters.coins.coin_server import CoinServer
from corsage.strategies.known_clusters.coins.conversation import Answer, ClusterScript, Request
from corsage.strategies.known_clusters.coins.schedule import legs

if TYPE_CHECKING:
    from corsage.networks.network import Network


@dataclass
class AsyncL2GDState(CoinState):
    """The state of Async-L2GD's server.

    Parameters
    ----------
    centres : thbar_j (k, d), in the order of the clusters' numbers.
    factor, shift : theta_i <- factor_j theta_i + shift_j, what cluster j's users have not heard of.
    users, theta : theta_i (n, d) and whose they are, where users differ in gamma.
    """

    centres: Floats = field(default_factory=lambda: np.empty((0, 0)))
    factor: Floats = field(default_factory=lambda: np.empty(0))
    shift: Floats = field(default_factory=lambda: np.empty((0, 0)))
    users: list[str] = field(default_factory=list)
    theta: Floats = field(default_factory=lambda: np.empty((0, 0)))

    @classmethod
    def beginning(cls, model: Array) -> AsyncL2GDState:
        """thbar = theta^0, and nothing else."""
        none = np.empty((0, len(model)))
        return cls(model, centres=none, shift=none, theta=none)


class CentresAndMaps(CoinServer[AsyncL2GDState]):
    """The server of clusters whose users share a gamma."""

    def enter(self) -> None:
        """Clusters that are new begin at the middle."""
        state = self.state
        new = len(state.clusters.known) - len(state.centres)
        middle = np.tile(state.model.astype(np.float64), (new, 1))
        state.centres = np.concatenate([state.centres, middle])
        state.factor = np.concatenate([state.factor, np.zeros(new)])
        state.shift = np.concatenate([state.shift, middle])

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

    def walk(self, j: int, walk: Walk, first: int, part: Stretch) -> ClusterScript[None]:
        """Steps to the centre (line 13) grow the map; then users hear of it and learn (line 15).

        A node that hosts all of the cluster takes the whole walk at once.
        """
        state, place, cohorts = self.state, self.schedule.present.places[j], self.cohorts(j)
        rate = self.schedule.cluster_rates
        c, step = float(rate.within[j]), float(rate.local[j])
        for leg in legs(walk, first, whole=len(cohorts) == 1):
            now = Affine(state.factor[place], state.shift[place])
            now = compose(now, within_map(state.centres[place], c, leg.to_centre))
            state.factor[place], state.shift[place] = now
            if leg.trips:
                options = {"walk": leg.runs, "step": step, "pull": c}
                answers = yield self.requests(cohorts, options)
                state.centres[place] = mean(self.heard(answers))
                state.factor[place], state.shift[place] = 1.0, 0.0
                self.trips(cohorts, leg.trips)

    def end_round(self, part: Stretch) -> None:
        """The middle."""
        state, places = self.state, self.schedule.present.places
        middle = self.schedule.hierarchy.weights @ state.centres[places]
        state.model = middle.astype(state.model.dtype)

    def shown(self, cohort: Cohort) -> Request:
        """The map that a cohort has not heard of, and the pull of new users."""
        gamma = self.state.strengths.typical_gamma(cohort)
        return Request(cohort, self.row(cohort), {"gamma": gamma})

    def requests(self, cohorts: Sequence[Cohort], options: dict[str, Any]) -> list[Request]:
        """Maps, and what to do then; the mean of a cohort's models comes back."""
        template = {"mean": self.state.model}
        return [
            Request(cohort, self.row(cohort), options, template, self.numbers, self.fault)
            for cohort in cohorts
        ]

    def row(self, cohort: Cohort) -> Arrays:
        """A cohort's map as it is sent."""
        told, dtype = self.pending(cohort), self.state.model.dtype
        return {"factor": np.asarray(told.factor, dtype), "shift": np.asarray(told.shift, dtype)}

    def pending(self, cohort: Cohort) -> Affine:
        """The map that a cohort has not heard of.

        One without models begins at the centre, one of a cluster that did not train in the middle.
        """
        state = self.state
        known = state.clusters.known[: len(state.centres)]
        if cohort.cluster not in known:
            return Affine(0.0, state.model)
        place = known.index(cohort.cluster)
        if not cohort.version(self.job.progress.versions):
            return Affine(0.0, state.centres[place])
        return Affine(state.factor[place], state.shift[place])

    def trips(self, cohorts: list[Cohort], trips: int) -> None:
        """A round trip is a vector and a number down, a vector up, for every user."""
        size = self.state.model.nbytes
        self.count(cohorts, trips, down=trips * (size + 8), up=trips * size)


class UserModels(CentresAndMaps):
    """The server where users differ in gamma: each is a cohort, and its model a row."""

    @cached_property
    def row_of(self) -> dict[str, int]:
        """Each user's row; asked only after `enter`."""
        return {user: row for row, user in enumerate(self.state.users)}

    @cached_property
    def rows(self) -> Ints:
        """The rows of the users that train now, in the order of the hierarchy."""
        return np.array([self.row_of[cohort.name] for cohort in self.schedule.present.cohorts])

    def enter(self) -> None:
        """New users begin at their cluster's centre."""
        super().enter()
        state, known = self.state, set(self.state.users)
        new = [cohort for cohort in self.schedule.present.cohorts if cohort.name not in known]
        places = [state.clusters.known.index(cohort.cluster) for cohort in new]
        state.theta = np.concatenate([state.theta, state.centres[places]])
        state.users = [*state.users, *(cohort.name for cohort in new)]

    def global_steps(self, steps: int) -> None:
        """Line 7 for every user."""
        theta, schedule = self.state.theta, self.schedule
        own = theta[self.rows]
        theta[self.rows] = replay_global(own, schedule.hierarchy, schedule.rates, steps)

    def walk(self, j: int, walk: Walk, first: int, part: Stretch) -> ClusterScript[None]:
        """Line 13 is done here; for local steps (line 15) users get their models and send them."""
        hierarchy, rate = self.schedule.hierarchy, self.schedule.rates
        members, cohorts = hierarchy.members(j), self.cohorts(j)
        rows, gamma, c = self.rows[members], hierarchy.gamma[members], rate.within[members]
        for leg in legs(walk, first, whole=False):
            theta = self.state.theta
            theta[rows] = replay_within(theta[rows], gamma, c, leg.to_centre)
            if leg.trips:
                options = {"walk": leg.runs, "step": float(rate.local[j]), "pull": 0.0}
                answers = yield self.requests(cohorts, options)
                for answer in self.heard(answers):
                    self.state.theta[self.row_of[answer.cohort.name]] = answer.rows["mean"]
                self.trips(cohorts, leg.trips)

    def end_round(self, part: Stretch) -> None:
        """The centres, and the middle."""
        places, hierarchy = self.schedule.present.places, self.schedule.hierarchy
        self.state.centres[places] = hierarchy.centres(self.state.theta[self.rows])
        super().end_round(part)

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


@dataclass(frozen=True)
class AsyncL2GDKeys(CoinKeys):
    """Keys of Async-L2GD: those of all methods with coins for known clusters."""

    needs: ClassVar = {}
    prefers: ClassVar = {"model": "linear"}
    asks = "users in known clusters"


class AsyncL2GD(CoinMethod[AsyncL2GDKeys, AsyncL2GDState]):
    """The server of Async-L2GD: its place in the coins, the centres, and maps to be told."""

    name = "async-l2gd"

    def unused(self, name: str) -> str:
        """A convex loss has steps of its full gradient; others are SGD's, of one size all along."""
        job = self.job
        if job.agreed.shape and job.convex:
            return "users take steps of the full gradient of a convex loss"
        return "its step size is part of the settings of a run" if name == "lr-schedule" else ""

    def initial(self, network: Network) -> AsyncL2GDState:
        """theta^0: zero for a linear model, as in the paper; else the model of the seed."""
        self.check_keys()
        convex = self.job.convex
        start = network.initial.astype(self.config.model.precision if convex else np.float32)
        return AsyncL2GDState.beginning(np.zeros_like(start) if convex else start)

    @property
    def server(self) -> CentresAndMaps:
        """The server's part, by clusters, or by users where these differ in gamma."""
        kind = UserModels if self.state.clusters.apart else CentresAndMaps
        return kind(self.job, self.schedule, self.state)
