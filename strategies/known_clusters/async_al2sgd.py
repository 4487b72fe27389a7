"""Async-AL2SGD+: accelerated, variance-reduced, for known clusters.

Lyu et al. 2022, Algorithm 2, with the unbiased estimator; experiments/known_clusters has it
line by line. Users keep z_i, y_i, an anchor x_i and its gradient, and all renew their
anchors together with probability rho.

As in Async-L2GD what needs no word from the users runs together. The server moves rows of its own
through all iterations with xi_0 = 1 or xi_j = 1 (server_rows.py), and tells the users of them
before their next local step or refresh (al2sgd_server.py). Clusters wait for each other at global
steps and refreshes.

f_i must be convex with known curvature (model=linear); mu > 0 is the smallest one of f_i, or
`al2sgd-mu`. A user that comes late begins at its cluster's centre, and counts in full from the next
refresh on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from corsage.core.errors import ConfigError
from corsage.core.keys import key
from corsage.solvers.known_clusters.coins.al2sgd_coalescing import plan
from corsage.solvers.known_clusters.coins.flips import Stretch
from corsage.solvers.known_clusters.coins.katyusha import Momenta, check, parameters
from corsage.solvers.known_clusters.hierarchy import Hierarchy
from corsage.strategies.known_clusters.clusters.strengths import AUTO
from corsage.strategies.known_clusters.coins.al2sgd_server import AL2SGDServer
from corsage.strategies.known_clusters.coins.coin_keys import CoinKeys, fixed_settings, number
from corsage.strategies.known_clusters.coins.coin_method import CoinMethod
from corsage.strategies.known_clusters.coins.key_checks import check_convex
from corsage.strategies.known_clusters.coins.schedule import CoinSchedule
from corsage.strategies.known_clusters.coins.server_rows import AsyncAL2SGDState
from corsage.strategies.rounds.results import Finding

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
