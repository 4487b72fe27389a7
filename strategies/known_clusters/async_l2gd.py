"""Async-L2GD: a coin for the network, and a coin for each known cluster.

Lyu et al. 2022, Algorithm 1, on their objective (2.1), as experiments/known_clusters has it
line by line: global steps towards the middle and the centres, steps to a cluster's centre, and
local steps.

All coins are drawn up front, and what needs no word from the users runs together. A round is a run
of global steps (line 7), and then each cluster's own walk to the next global step (lines 9 to 17),
for which alone clusters wait for each other. l2gd_server.py is what the server does in it.

A user whose reply is missing stays where it is; one that comes late, or lost its model, begins at
its cluster's centre. Models that are not linear: lr stands for 1/(2 L), local steps are of SGD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from corsage.strategies.known_clusters.coins.coin_keys import CoinKeys
from corsage.strategies.known_clusters.coins.coin_method import CoinMethod
from corsage.strategies.known_clusters.coins.l2gd_server import (
    AsyncL2GDState,
    CentresAndMaps,
    UserModels,
)

if TYPE_CHECKING:
    from corsage.networks.network import Network


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
