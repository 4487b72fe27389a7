"""SCAFFOLD: FedAvg with control variates against the drift of users apart.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning, ICML 2020, Algorithm 1 with option II. In a round the server sends x and c; user
i takes K steps y_i <- y_i - eta_l (g_i(y_i) - c_i + c) from x and replaces its variate by

    c_i+ = c_i - c + (x - y_i) / (K eta_l)                                           (4, option II)

It sends y_i and c_i+ - c_i; over the round's users S out of N the server takes

    x <- x + eta_g / |S| sum_S (y_i - x),      c <- c + 1/N sum_S (c_i+ - c_i),          (5)

so that c is the mean of all users' c_i after every round. With `weighting=examples` both sums, and
so the mean that c is, weigh users by their examples.

With `robust` users send c_i+, and c goes to the rule's average of those, by |S|/N of the way. A
rule on changes would not do: sums over rounds of their medians drift away from all c_i, and take
the users with them.

The paper's local steps have no momentum. The key `momentum` is respected all the same, so that
methods can be compared under one protocol. Then x - y_i is eta_l times a sum of the corrected
gradients in which each counts sum_{j <= steps left} momentum^j; K eta_l in (4) becomes eta_l
times the sum of these weights, so that c_i+ is still a mean of user i's gradients (with K alone it
would be about 1/(1 - momentum) times that). momentum=0 is the paper's algorithm. Weight decay is
part of g_i.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from corsage.core.arrays import Floats32
from corsage.core.keys import Keys, key
from corsage.core.messages.replies import Replies
from corsage.strategies.rounds.base import GlobalModel
from corsage.strategies.rounds.means.user_rows import share_of_all
from corsage.strategies.rounds.state import ModelState
from corsage.strategies.rounds.turns import Parcel

if TYPE_CHECKING:
    from corsage.networks.network import Network


@dataclass(frozen=True)
class ScaffoldKeys(Keys):
    """Keys of SCAFFOLD."""

    title = "SCAFFOLD"

    scaffold_server_lr: float = key(
        1.0,
        "step size eta_g of the server. Local steps use momentum if it is set (the paper: "
        "momentum=0); the users' variates allow for it",
        low=0.0,
    )


@dataclass
class ScaffoldState(ModelState):
    """x, and c, the mean of all users' c_i."""

    variate: Floats32


class Scaffold(GlobalModel[ScaffoldKeys, ScaffoldState]):
    """The server of SCAFFOLD: it holds the model x and the control variate c."""

    name = "scaffold"
    changes: tuple[str, ...] = ("variate",)

    def unused(self, name: str) -> str:
        """The reason why c_i+ would be no mean of gradients."""
        if name in ("optimizer", "clip-gradient"):
            return "its variates are means of gradients, of which x - y_i must be the sum"
        return ""

    def prepare(self) -> None:
        """c is a mean over all users: what one weighs must not change with who takes part."""
        self.job.lasting = True
        if self.config.robust.on:
            self.changes = ()

    def initial(self, network: Network) -> ScaffoldState:
        """x_0, and c = 0."""
        return ScaffoldState(network.initial, np.zeros_like(network.initial))

    def show(self, users: list[str], options: Mapping[str, Any]) -> Parcel:
        """An evaluation needs x only."""
        return Parcel({"model": self.state.model})

    def merge(self, replies: Replies) -> ScaffoldState:
        """Equation 5: the mean of y_i and of c_i+ - c_i has come."""
        step, model = self.keys.scaffold_server_lr, self.state.model
        share = share_of_all(self.job, replies.weight)
        x = np.float32(1.0 - step) * model + np.float32(step) * replies.mean["model"]
        now, came = self.state.variate, replies.mean["variate"]
        c = now + share * (came if self.changes else came - now)
        return ScaffoldState(x.astype(np.float32), c.astype(np.float32))
