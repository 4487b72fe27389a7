"""FedDBE: each user keeps what its features are off by, and all draw to one mean of features.

Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan: Eliminating Domain Bias for Federated Learning in
Representation Space, NeurIPS 2023: FedAvg with the domain bias eliminator. Between a body f and a
head h user i has a memory of its bias, z_i of the features' length, and predicts with
h(f(x) + z_i). It takes SGD on f, h and z_i at once, on its loss and

    kappa/2 mean_k (m_i - m)_k^2,    m_i <- (1 - mu) m_i + mu mean of the batch's f(x),

where m_i begins at 0 in each round and m is the consensus, the mean over users of their m_i at the
end of an initial round. f and h are averaged; z_i, which begins at 0, stays.

The paper has its initial round before all others, with all users, and lets go of what they trained.
Here it is round 1, which has neither z_i nor m, and is FedAvg's. With kappa = 0 and no steps of z_i
all rounds are: the head is averaged, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Arrays, Floats32
from corsage.core.errors import ConfigError
from corsage.core.keys import Keys, key
from corsage.core.messages.replies import Replies
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.prototypes import check_features
from corsage.strategies.rounds.state import ModelState

if TYPE_CHECKING:
    from corsage.networks.network import Network


@dataclass(frozen=True)
class FedDBEKeys(Keys):
    """Keys of FedDBE."""

    title = "FedDBE"

    feddbe_kappa: float = key(
        1.0, "weight kappa of the distance to the mean of features", tuned=(0.1, 100.0), low=0.0
    )
    feddbe_shift: float = key(
        1.0,
        "step size of a user's bias, in those of the model; 0: none",
        tuned=(0.1, 10.0),
        low=0.0,
    )
    feddbe_mu: float = key(
        1.0, "share mu of a batch in the running mean of features", low=0.0, high=1.0
    )


@dataclass
class FedDBEState(ModelState):
    """The model, and m, if users have agreed on it."""

    consensus: Floats32
    agreed: bool = False


class FedDBE(Strategy[FedDBEKeys, FedDBEState]):
    """The server of FedDBE: it holds the model and m, and knows no z_i."""

    name = "feddbe"
    tuned = ("own",)
    changes = ("mean",)  # it is a step from nothing
    no_server_step = "the mean of features is agreed on once, and no step from another"

    def prepare(self) -> None:
        """Steps of z_i are taken beside those of the model, whose gradient fp16 scales."""
        if self.config.train.mixed_precision == "fp16":
            raise ConfigError("mixed-precision=fp16: not for strategy=feddbe; take bf16 or none.")

    def initial(self, network: Network) -> FedDBEState:
        """The first model, which must have features."""
        check_features(self, network, "it shifts a body's features")
        return FedDBEState(network.initial, np.zeros(network.width, np.float32))

    def shared(self) -> Arrays:
        """The model, and after the initial round m."""
        agreed = {"consensus": self.state.consensus} if self.state.agreed else {}
        return {"model": self.state.model, **agreed}

    def template(self) -> Arrays:
        """A user sends its model, and in the initial round m_i."""
        first = {} if self.state.agreed else {"mean": self.state.consensus}
        return {"model": self.state.model, **first}

    def merge(self, replies: Replies) -> FedDBEState:
        """The means of the models and, in the initial round, of m_i."""
        mean = replies.mean
        return FedDBEState(mean["model"], mean.get("mean", self.state.consensus), agreed=True)
