"""What the server of Async-AL2SGD+ asks its users, and tells them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from corsage.solvers.known_clusters.al2sgd_coalescing import Plan
from corsage.solvers.known_clusters.coins import Walk
from corsage.strategies.known_clusters.cohorts import Cohort
from corsage.strategies.known_clusters.conversation import (
    Answer,
    ClusterScript,
    Conversation,
    Request,
    ask_each,
)
from corsage.strategies.known_clusters.schedule import CoinSchedule, Leg, legs
from corsage.strategies.known_clusters.server_rows import AsyncAL2SGDState, ServerRows
from corsage.strategies.rounds.federation import Federation


class AL2SGDServer:
    """The server in one round.

    Parameters
    ----------
    federation, schedule : who takes part, and with which coins and steps.
    state : what is remembered, and changed here.

    Attributes
    ----------
    rows : what the server moves alone.
    reach : the largest norm of a model that users told of in this round.
    """

    def __init__(
        self, federation: Federation, schedule: CoinSchedule, state: AsyncAL2SGDState
    ) -> None:
        self.federation, self.schedule, self.state = federation, schedule, state
        self.rows, self.reach = ServerRows(schedule, state), 0.0

    def begin(self) -> Conversation[list[Answer]]:
        """The gradients at theta^0 are asked for."""
        self.rows.enter()
        template = {"slope": self.state.model}
        request = partial(Request, options={"ask": "begin"}, template=template)
        return ask_each(self.federation, self.schedule.present, request)

    def begun(self, asked: Conversation[list[Answer]]) -> None:
        """Take over the gradients."""
        for answers in asked.found.values():
            self.rows.hear(answers, ("slope",))
        self.rows.settle_anchors()

    def walks(self, plan: Plan) -> dict[str, ClusterScript[None]]:
        """Each cluster's iterations with xi_0 = 0."""
        names, first = self.schedule.present.names, plan.first + plan.globals
        return {
            name: self.walk(j, walk, first, plan.refresh)
            for j, (name, walk) in enumerate(zip(names, plan.walks, strict=True))
        }

    def walk(self, j: int, walk: Walk, first: int, refresh: bool) -> ClusterScript[None]:
        """Cluster j's iterations; a node that hosts all of it takes them all at once.

        Those with xi_j = 1 are done here, the others by the users, and at last perhaps a refresh.
        """
        present = self.schedule.present
        cohorts = present.groups[present.names[j]]
        parts = legs(walk, first, whole=len(cohorts) == 1)
        for leg in parts:
            renew = refresh and leg is parts[-1]
            self.rows.steps_to_centre(j, leg.to_centre)
            if leg.trips or renew:
                kinds = ("z", "y", "slope") if renew else ("z", "y")
                options = {"walk": leg.runs, "refresh": renew}
                answers = yield [self.request(cohort, options, kinds) for cohort in cohorts]
                self.reach = max(self.reach, *(answer.metrics["reach"] for answer in answers))
                self.rows.hear(answers, kinds)
                self.count(cohorts, leg, renew)

    def request(self, cohort: Cohort, options: dict[str, Any], kinds: Sequence[str]) -> Request:
        """What a cohort needs to know, and what it is to do."""
        shown, template = self.shown(cohort), dict.fromkeys(kinds, self.state.model)
        return Request(cohort, shown.rows, {**shown.options, **options}, template)

    def count(self, cohorts: list[Cohort], leg: Leg, renew: bool) -> None:
        """A round trip: the means that were missed down, z and y up; a gradient in a refresh."""
        size, users = self.state.model.nbytes, sum(len(cohort.users) for cohort in cohorts)
        trips = leg.trips + (renew and not (leg.runs and leg.runs[-1][1]))
        traffic = self.federation.progress.traffic
        traffic.bytes_down += trips * users * 2 * size
        traffic.bytes_up += (2 * trips + renew) * users * size
        traffic.messages += 2 * trips * users

    # What users are told.

    def shown(self, cohort: Cohort) -> Request:
        """Steps that were missed, the anchors' means, and where a new user begins."""
        state, name, missed = self.state, self.rows.name_of(cohort), self.rows.missed(cohort)
        options = {"gamma": state.strengths.typical_gamma(cohort), "global": missed.is_global}
        row = self.rows.row_of.get(name)
        if row is None:
            start = self.rows.start_of(cohort)
            means = {"start": start, "xbar_j": start, "xbar": start}
        else:
            means = {"start": state.y[row], "xbar_j": state.xbar_j[row], "xbar": state.xbar}
            options |= {"momenta": vars(state.momenta), "oracle": self.oracles.get(name)}
        return Request(cohort, {"missed": missed.means, **means}, options)

    @property
    def oracles(self) -> dict[str, list[float]]:
        """What (4.1) multiplies with, by name: the same for as long as nobody comes or goes."""

        def made() -> dict[str, list[float]]:
            names = [self.state.names[row] for row in self.rows.here]
            return dict(zip(names, np.column_stack(self.rows.oracle).tolist(), strict=True))

        return self.schedule.present.prepared.get("oracles", made)
