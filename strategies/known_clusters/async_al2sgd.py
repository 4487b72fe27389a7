"""Async-AL2SGD+: accelerated, variance-reduced, for known clusters.

Lyu et al. 2022, Algorithm 2, with the unbiased estimator; experiments/known_clusters has it
line by line. Users keep z_i, y_i, an anchor x_i and its gradient, and all renew their
anchors together with probability rho.

As in Async-L2GD what needs no word from the users runs together. The server moves rows of its own
through all iterations with xi_0 = 1 or xi_j = 1 (server_rows.py), and tells the users of them
before their next local step or refresh (`AL2SGDServer`). Clusters wait for each other at global
steps and refreshes.

f_i must be convex with known curvature (model=linear); mu > 0 is the smallest one of f_i, or
`al2sgd-mu`. A user that comes late begins at its cluster's centre, and counts in full from the next
refresh on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from corsage.core.errors import ConfigError
from corsage.core.keys import key
from corsage.solvers.known_clusters.coins.al2sgd_coalescing import plan
from corsage.solvers.known_clusters.coins.flips import Stretch, Walk
from corsage.solvers.known_clusters.coins.katyusha import Momenta, check, parameters
from corsage.solvers.known_clusters.hierarchy import Hierarchy
from corsage.strategies.known_clusters.clusters.cohorts import Cohort
from corsage.strategies.known_clusters.clusters.strengths import AUTO
from corsage.strategies.known_clusters.coins.coin_keys import (
    CoinKeys,
    check_convex,
    fixed_settings,
    number,
)
from corsage.strategies.known_clusters.coins.coin_method import CoinMethod
from corsage.strategies.known_clusters.coins.coin_server import CoinServer, StepCheck, sound
from corsage.strategies.known_clusters.coins.conversation import ClusterScript, Request, ask_each
from corsage.strategies.known_clusters.coins.schedule import CoinSchedule, Leg, legs
from corsage.strategies.known_clusters.coins.server_rows import AsyncAL2SGDState, ServerRows
from corsage.strategies.rounds.job import Job
from corsage.strategies.rounds.results import Finding
from corsage.strategies.rounds.turns import Script

if TYPE_CHECKING:
    from corsage.networks.network import Network

FLOOR = 1e-4
"""mu of losses that are not strongly convex, as a share of L."""


@dataclass(frozen=True)
class AsyncAL2SGDKeys(CoinKeys):
    """Keys of Async-AL2SGD+."""

    title = "Async-AL2SGD+"
    asks = "users in known clusters"

    al2sgd_rho: str = key(
        AUTO,
        "probability of a refresh of all anchors (rho), or auto: p_0 (1 - p_0), but at least a "
        "tenth of p_j (1 - p_j) in the busiest cluster",
    )
    al2sgd_mu: str = key(
        AUTO, "strong convexity of the losses (mu), or auto: as it is, at least 1e-4 of L"
    )
    al2sgd_oracle: str = key(
        "full",
        "gradients of local steps: of all of a user's samples, or of one drawn at random, as in "
        "the paper",
        choices=("full", "sample"),
    )


class AsyncAL2SGD(CoinMethod[AsyncAL2SGDKeys, AsyncAL2SGDState]):
    """The server of Async-AL2SGD+: means of clusters (or users' rows), and what to tell of them."""

    name = "async-al2sgd"
    untrained = "users take the steps of variance reduction on a convex loss"

    def initial(self, network: Network) -> AsyncAL2SGDState:
        """theta^0 = 0."""
        check_convex(self.job)
        self.check_keys()
        number("al2sgd-mu", self.keys.al2sgd_mu, 0.0)
        if not 0 < number("al2sgd-rho", self.keys.al2sgd_rho, 1.0) <= 1:
            raise ConfigError(f"al2sgd-rho={self.keys.al2sgd_rho}: must be above 0, and at most 1.")
        return AsyncAL2SGDState.beginning(network.whole.stop)

    @property
    def server(self) -> AL2SGDServer:
        """The server's part: steps that it makes alone, its questions, and its messages."""
        return AL2SGDServer(self.job, self.schedule, self.state)

    def fix(self, hierarchy: Hierarchy, smoothness: float, convexity: float) -> None:
        """The settings of Theorem 4.3; a step size that is given changes a_1 and b_2 with it."""
        keys, state = self.keys, self.state
        names = self.clusters.meet(state.clusters).names
        mu = number("al2sgd-mu", keys.al2sgd_mu, max(convexity, FLOOR * smoothness))
        rho = None if keys.al2sgd_rho == AUTO else number("al2sgd-rho", keys.al2sgd_rho, 0.0)
        theorem = partial(parameters, hierarchy, smoothness, mu, rho=rho)
        settings = fixed_settings(
            keys, names, hierarchy, smoothness, lambda p0, p: theorem(p0=p0, p=p).eta
        )
        found = theorem(p0=settings.p0, p=settings.parameters(names).p, eta=settings.eta)
        check(found, hierarchy)
        state.momenta = Momenta(found.eta, found.a1, found.a2, found.b1, found.b2)
        state.settings, state.rho, state.mu = settings, found.rho, mu

    def part(self, schedule: CoinSchedule, first: int) -> Stretch:
        """A stretch, which also ends with a refresh."""
        refresh = schedule.coins.refresh_coin(self.state.rho)
        return plan(schedule.coins, refresh, first, self.keys.iterations)

    def findings(self) -> list[Finding]:
        """The settings, communications, and refreshes, which are rounds between clusters too."""
        found, state = super().findings(), self.state
        found[0].rows.extend([("rho", f"{state.rho:.4g}"), ("mu", f"{state.mu:.4g}")])
        refreshes = f"{state.refreshes:,} (expected {state.rho * state.iteration:,.1f})"
        found[1].rows.insert(1, ("refreshes, of all users", refreshes))
        return found


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
