"""What the server of Async-AL2SGD+ does alone, asks its users, and tells them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import numpy as np

from corsage.core.arrays import Bools
from corsage.solvers.known_clusters.al2sgd_coalescing import leaves_behind
from corsage.solvers.known_clusters.coins import Stretch, Walk
from corsage.strategies.known_clusters.cohorts import Cohort
from corsage.strategies.known_clusters.coin_server import CoinServer, StepCheck
from corsage.strategies.known_clusters.conversation import ClusterScript, Request, ask_each
from corsage.strategies.known_clusters.schedule import CoinSchedule, Leg, left, legs
from corsage.strategies.known_clusters.server_rows import AsyncAL2SGDState, ServerRows
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
            self.rows.hear(answers, ("slope",))
        self.rows.settle_anchors()
        self.state.begun = True

    def enter(self) -> None:
        """Rows for those who are new."""
        self.rows.enter()

    def global_steps(self, steps: int, there: Bools | None = None) -> None:
        """Iterations with xi_0 = 1, of all rows, or of those of some clusters."""
        if there is None:
            self.rows.global_steps(steps)
        else:
            self.rows.some_steps(steps, there)

    def meet(self, there: Collection[str]) -> None:
        """The anchors of those that took part in a refresh are new for the others too."""
        self.rows.refresh_some(there)

    def walk_of(self, j: int, part: Stretch, answered: int | None = None) -> ClusterScript[None]:
        """A walk; whether its last steps are still to be heard of."""
        work, name = self.state.work, self.schedule.present.names[j]
        rest = [other for other in work.behind if other != name]
        late = leaves_behind(part, j, name in work.behind)
        work.behind = [*rest, name] if late else rest
        return super().walk_of(j, part, answered)

    def walk(
        self, j: int, walk: Walk, first: int, part: Stretch, answered: int | None = None
    ) -> ClusterScript[None]:
        """Iterations with xi_j = 1 are done here, the others by the users; perhaps a refresh.

        A node that hosts all of the cluster takes the whole walk at once.
        """
        cohorts = self.cohorts(j)
        todo = legs(walk, first, whole=len(cohorts) == 1)
        for leg in left(todo, answered, lambda leg: leg.trips or (part.refresh and leg.last)):
            renew = part.refresh and leg.last
            self.rows.steps_to_centre(j, leg.to_centre)
            if leg.trips or renew:
                kinds = ("z", "y", "slope") if renew else ("z", "y")
                options = {"walk": leg.runs, "refresh": renew}
                answers = yield [self.request(cohort, options, kinds) for cohort in cohorts]
                self.rows.hear(self.heard(answers), kinds)
                self.trips(cohorts, leg, renew)

    def end_round(self, part: Stretch, there: Bools | None = None) -> None:
        """After a refresh the anchors of those who answered are new; the middle of y."""
        if part.refresh and there is None:
            self.rows.refresh()
        self.state.model = self.rows.middle(there)

    def request(self, cohort: Cohort, options: dict[str, Any], kinds: Sequence[str]) -> Request:
        """What a cohort needs to know, and what it is to do."""
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
            xbar = self.rows.xbar_of(name)
            means = {"start": state.y[row], "xbar_j": state.xbar_j[row], "xbar": xbar}
            options |= {"momenta": vars(state.momenta), "oracle": self.oracles.get(name)}
        return Request(cohort, {"missed": missed.means, **means}, options)

    @property
    def oracles(self) -> dict[str, list[float]]:
        """What (4.1) multiplies with, by name: the same for as long as nobody comes or goes."""

        def made() -> dict[str, list[float]]:
            names = [self.state.names[row] for row in self.rows.here]
            return dict(zip(names, np.column_stack(self.rows.oracle).tolist(), strict=True))

        return self.schedule.present.prepared.get("oracles", made)

    def trips(self, cohorts: list[Cohort], leg: Leg, renew: bool) -> None:
        """A round trip: the means that were missed down, z and y up; a gradient in a refresh."""
        size = self.state.model.nbytes
        trips = leg.trips + (renew and not (leg.runs and leg.runs[-1][1]))
        self.count(cohorts, trips, down=2 * trips * size, up=(2 * trips + renew) * size)
