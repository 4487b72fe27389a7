"""Async-AL2SGD+: accelerated, variance-reduced, for known clusters.

Lyu et al. 2022, Algorithm 2, with the unbiased estimator; solvers/known_clusters/async_al2sgd.py
has it line by line. Users keep z_i, y_i, an anchor x_i and its gradient, and all renew their
anchors together with probability rho.

As in Async-L2GD what needs no word from the users runs together. The server moves rows of its own
(server_rows.py) through all iterations with xi_0 = 1 or xi_j = 1, and tells the users of them before
their next local step or refresh. Clusters wait for each other at global steps and refreshes.

f_i must be convex with known curvature (model=linear); mu > 0 is the smallest one of f_i, or
`al2sgd-mu`. A user that comes late begins at its cluster's centre, and counts in full from the next
refresh on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.errors import ConfigError
from corsage.core.keys import key
from corsage.core.replies import Replies
from corsage.solvers.known_clusters.al2sgd_coalescing import Plan, plan
from corsage.solvers.known_clusters.hierarchy import Hierarchy
from corsage.solvers.known_clusters.katyusha import Momenta, check, parameters
from corsage.strategies.known_clusters.al2sgd_server import AL2SGDServer
from corsage.strategies.known_clusters.cohorts import Cohort
from corsage.strategies.known_clusters.coin_method import CoinMethod, StepCheck
from corsage.strategies.known_clusters.coins import CoinKeys, fixed_settings, number
from corsage.strategies.known_clusters.conversation import Conversation, Request
from corsage.strategies.known_clusters.schedule import CoinSchedule
from corsage.strategies.known_clusters.server_rows import AsyncAL2SGDState
from corsage.strategies.known_clusters.strengths import AUTO
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

    al2sgd_rho: str = key(
        AUTO, "probability of a refresh of all anchors (rho), or auto: p_0 (1 - p_0)"
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

    def initial(self, network: Network) -> AsyncAL2SGDState:
        """theta^0 = 0."""
        if not self.federation.convex:
            raise ConfigError(
                f"{self.name}: needs model=linear and a loss with one output (squared, huber, "
                f"logistic, squared-hinge), not model={self.config.model.model}; async-l2gd takes "
                "any model."
            )
        return AsyncAL2SGDState.beginning(network.whole.stop)

    @property
    def server(self) -> AL2SGDServer:
        """What the server does alone, and asks."""
        return AL2SGDServer(self.federation, self.schedule, self.state)

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

    def part(self, schedule: CoinSchedule, first: int) -> Plan:
        """A stretch, which also ends with a refresh."""
        refresh = schedule.coins.refresh_coin(self.state.rho)
        return plan(schedule.coins, refresh, first, self.keys.iterations)

    def opening(self) -> Script[None]:
        """The settings; then the first refresh, x = y = z = theta^0, and its gradients."""
        yield from super().opening()
        if not self.state.names:
            server = self.server
            asked = server.begin()
            replies = yield asked
            StepCheck(self.federation, self.state).check(self.progress.round, replies)
            server.begun(asked)

    def round(self, number: int) -> Script[Replies]:
        """Algorithm 2 for a plan of iterations t: global steps, the clusters' walks, a refresh."""
        self.schedule.present.somebody(number)
        state, server, check = self.state, self.server, StepCheck(self.federation, self.state)
        plan = self.part(self.schedule, state.iteration)
        server.rows.enter()
        server.rows.global_steps(plan.globals)
        replies = yield Conversation(self.federation, server.walks(plan))
        check.check(number, replies)
        state.iteration = plan.last
        if plan.refresh:
            server.rows.refresh()
        state.model = server.rows.middle()
        check.watch(server.reach)
        self.clusters.note_trained(state.clusters)
        return replies

    def shown(self, cohorts: Sequence[Cohort]) -> list[Request]:
        """The steps that users have missed, or where new ones begin."""
        server = self.server
        return [server.shown(cohort) for cohort in cohorts]

    def findings(self) -> list[Finding]:
        """The settings, communications, and refreshes, which are rounds between clusters too."""
        found, state = super().findings(), self.state
        found[0].rows.extend([("rho", f"{state.rho:.4g}"), ("mu", f"{state.mu:.4g}")])
        refreshes = f"{state.refreshes:,} (expected {state.rho * state.iteration:,.1f})"
        found[1].rows.insert(1, ("refreshes, of all users", refreshes))
        return found
