"""Async-L2GD: a coin for the network, and a coin for each known cluster.

Lyu et al. 2022, Algorithm 1, on their objective (2.1), as solvers/known_clusters/async_l2gd.py has
it: global steps towards the middle and the centres, steps to a cluster's centre, and local steps.

All coins are drawn up front, and what needs no word from the users runs together. A round is a run
of global steps (line 7), and then each cluster's own walk to the next global step (lines 9 to 17),
for which alone clusters wait for each other. What the server knows meanwhile is in l2gd_server.py.

A user whose reply is missing stays where it is; one that comes late, or lost its model, begins at
its cluster's centre. Models that are not linear: lr stands for 1/(2 L), local steps are of SGD.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.replies import Replies
from corsage.strategies.known_clusters.cohorts import Cohort
from corsage.strategies.known_clusters.coin_method import CoinMethod, StepCheck
from corsage.strategies.known_clusters.coins import CoinKeys
from corsage.strategies.known_clusters.conversation import Conversation, Request
from corsage.strategies.known_clusters.l2gd_server import (
    AsyncL2GDState,
    CentresAndMaps,
    L2GDServer,
    UserModels,
)
from corsage.strategies.rounds.turns import Script

if TYPE_CHECKING:
    from corsage.networks.network import Network


@dataclass(frozen=True)
class AsyncL2GDKeys(CoinKeys):
    """Keys of Async-L2GD: those of all methods with coins for known clusters."""


class AsyncL2GD(CoinMethod[AsyncL2GDKeys, AsyncL2GDState]):
    """The server of Async-L2GD: its place in the coins, the centres, and maps to be told."""

    name = "async-l2gd"

    def initial(self, network: Network) -> AsyncL2GDState:
        """theta^0: zero for a linear model, as in the paper; else the model of the seed."""
        convex = self.federation.convex
        start = network.initial.astype(self.config.model.precision if convex else np.float32)
        return AsyncL2GDState.beginning(np.zeros_like(start) if convex else start)

    @property
    def server(self) -> L2GDServer:
        """What the server does alone."""
        kind = UserModels if self.state.clusters.apart else CentresAndMaps
        return kind(self.federation, self.schedule, self.state)

    def round(self, number: int) -> Script[Replies]:
        """Lines 2 to 19 of Algorithm 1, for a stretch of iterations t."""
        self.schedule.present.somebody(number)
        state, server, check = self.state, self.server, StepCheck(self.federation, self.state)
        stretch = self.part(self.schedule, state.iteration)
        server.enter()
        server.global_steps(stretch.globals)
        first = stretch.first + stretch.globals
        replies = yield Conversation(
            self.federation,
            {
                name: server.walk(j, walk, first)
                for j, (name, walk) in enumerate(zip(server.names, stretch.walks, strict=True))
            },
        )
        check.check(number, replies)
        state.iteration = stretch.last
        server.end_round()
        check.watch(server.reach)
        self.clusters.note_trained(state.clusters)
        return replies

    def shown(self, cohorts: Sequence[Cohort]) -> list[Request]:
        """The map that a cohort was not told yet, or where a new one begins."""
        return self.server.shown(cohorts)
