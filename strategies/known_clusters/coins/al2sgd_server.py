"""The server of Async-AL2SGD+: its own steps, its questions and its messages to users."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from corsage.solvers.known_clusters.coins.flips import Stretch, Walk
from corsage.strategies.known_clusters.clusters.cohorts import Cohort
from corsage.strategies.known_clusters.coins.coin_server import CoinServer, StepCheck, sound
from corsage.strategies.known_clusters.coins.conversation import ClusterScript, Request, ask_each
from corsage.strategies.known_clusters.coins.schedule import CoinSchedule, Leg, legs
from corsage.strategies.known_clusters.coins.server_rows import AsyncAL2SGDState, ServerRows
from corsage.strategies.rounds.job import Job
from corsage.strategies.rounds.turns import Script


class AL2SGDServer(CoinServer[AsyncAL2SGDState]):
    """The server: its rows, and who hears of them."""

    def __init__(self, job: Job, schedule: CoinSchedule, state: AsyncAL2SGDState) -> None:
        super().__init__(job, schedule, state)
        self.rows = ServerRows(schedule, state)

    def opening(self) -> Script[None]:
        """The first refresh: x = y = z = theta^0, and its gradients."""
        if self.state.begun:
            return
        self.enter()
        template = {"slope": self.state.model}
        request = partial(Request, options={"ask": "begin"}, template=template)
        asked = ask_each(self.job, self.schedule.present, request)
        replies = yield asked
        StepCheck(self.job, self.state).check(
            self.job.progress.round, replies, len(self.schedule.present.cohorts)
        )
        for answers in asked.found.values():
            self.rows.hear(sound(self.job, self.state, answers), ("slope",))
        self.rows.settle_anchors()
        self.state.begun = True

    def enter(self) -> None:
        """Rows for those who are new."""
        self.rows.enter()

    def global_steps(self, steps: int) -> None:
        """Iterations with xi_0 = 1, of all rows."""
        self.rows.global_steps(steps)

    def walk(self, j: int, walk: Walk, first: int, part: Stretch) -> ClusterScript[None]:
        """Iterations with xi_j = 1 are done here, the others by the users; perhaps a refresh.

        A node that hosts all of the cluster takes the whole walk at once.
        """
        cohorts = self.cohorts(j)
        todo = legs(walk, first, whole=len(cohorts) == 1)
        for leg in todo:
            renew = part.refresh and leg is todo[-1]
            self.rows.steps_to_centre(j, leg.to_centre)
            if leg.trips or renew:
                kinds = ("z", "y", "slope") if renew else ("z", "y")
                options = {"walk": leg.runs, "refresh": renew}
                answers = yield [self.request(cohort, options, kinds) for cohort in cohorts]
                self.rows.hear(self.heard(answers), kinds)
                self.trips(cohorts, leg, renew)

    def end_round(self, part: Stretch) -> None:
        """After a refresh the anchors of those who answered are new; the middle of y."""
        if part.refresh:
            self.rows.refresh()
        self.state.model = self.rows.middle()

    def request(self, cohort: Cohort, options: dict[str, Any], kinds: Sequence[str]) -> Request:
        """A cohort's message: the numbers that it needs, and the steps that it is to take."""
        shown, template = self.shown(cohort), dict.fromkeys(kinds, self.state.model)
        options = {**shown.options, **options}
        return Request(cohort, shown.rows, options, template, self.numbers, self.fault)

    def shown(self, cohort: Cohort) -> Request:
        """Steps that were missed, the anchors' means, and where a new user begins."""
        state, missed = self.state, self.rows.missed(cohort)
        name = self.rows.name_of(cohort)
        row, gamma = self.rows.row_of.get(name), state.strengths.typical_gamma(cohort)
        options: dict[str, Any] = {"gamma": gamma, "global": missed.is_global}
        if row is None:
            start = self.rows.start_of(cohort)
            means = {"start": start, "xbar_j": start, "xbar": start}
        else:
            means = {"start": state.y[row], "xbar_j": state.xbar_j[row], "xbar": state.xbar}
            options |= {"momenta": vars(state.momenta), "oracle": self.oracles.get(name)}
        return Request(cohort, {"missed": missed.means, **means}, options)

    @property
    def oracles(self) -> dict[str, list[float]]:
        """The factors of (4.1), by name: the same for as long as nobody comes or goes."""

        def made() -> dict[str, list[float]]:
            names = [self.state.names[row] for row in self.rows.here]
            return dict(zip(names, np.column_stack(self.rows.oracle).tolist(), strict=True))

        return self.schedule.present.prepared.get("oracles", made)

    def trips(self, cohorts: list[Cohort], leg: Leg, renew: bool) -> None:
        """A round trip: the means that were missed down, z and y up; a gradient in a refresh."""
        size = self.state.model.nbytes
        trips = leg.trips + (renew and not (leg.runs and leg.runs[-1][1]))
        self.count(cohorts, trips, down=2 * trips * size, up=(2 * trips + renew) * size)
