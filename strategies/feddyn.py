"""FedDyn: FedAvg whose users' losses are corrected, so that their minimisers agree.

Acar, Zhao, Matas, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic
Regularization, ICLR 2021, Algorithm 1. User k works on

    L_k(theta) - <g_k, theta> + alpha/2 |theta - theta^(t-1)|^2                                 (1)

from theta^(t-1), where g_k is the gradient of its loss where it ended before, and then takes
g_k <- g_k - alpha (theta_k - theta^(t-1)). Over the round's users P of m in all the server takes

    h <- h - alpha/m sum_P (theta_k - theta^(t-1)),    theta^t = mean_P theta_k - h / alpha.

With weights both are weighted. At alpha = 0 there is no h, and this is FedAvg. The paper minimises
(1); here it takes E epochs of SGD. Running statistics are averaged and not corrected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Arrays, Floats32
from corsage.core.keys import Keys, key
from corsage.core.messages.replies import Replies
from corsage.strategies.rounds.base import GlobalModel
from corsage.strategies.rounds.means.user_rows import share_of_all
from corsage.strategies.rounds.model_arrays import without_statistics
from corsage.strategies.rounds.state import ModelState

if TYPE_CHECKING:
    from corsage.networks.network import Network


@dataclass(frozen=True)
class FedDynKeys(Keys):
    """Keys of FedDyn."""

    title = "FedDyn"

    feddyn_alpha: float = key(0.1, "strength alpha of the regulariser; 0: FedAvg", low=0.0)


@dataclass
class FedDynState(ModelState):
    """theta, and h, the mean of all users' g_k."""

    h: Floats32


class FedDyn(GlobalModel[FedDynKeys, FedDynState]):
    """The server of FedDyn: it holds theta and h."""

    name = "feddyn"
    no_server_step = "its own step corrects the mean by all that came before"

    def prepare(self) -> None:
        """h is a mean over all users: what one weighs must not change with who takes part."""
        self.job.lasting = True

    def initial(self, network: Network) -> FedDynState:
        """theta^0, and h = 0."""
        return FedDynState(network.initial, np.zeros_like(network.initial))

    def shared(self) -> Arrays:
        """Users get theta alone."""
        return {"model": self.state.model}

    def merge(self, replies: Replies) -> FedDynState:
        """The mean of theta_k has come."""
        alpha, mean = self.keys.feddyn_alpha, replies.mean["model"]
        if not alpha:
            return FedDynState(mean, self.state.h)
        change = without_statistics(self.job.network, mean - self.state.model)
        share = share_of_all(self.job, replies.weight)
        h = self.state.h - np.float32(alpha * share) * change
        return FedDynState((mean - h / np.float32(alpha)).astype(np.float32), h)
