"""LG-FedAvg: local representations, one global head.

Liang, Liu, Liu, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act Globally:
Federated Learning with Local and Global Representations, 2020, Algorithm 1. The mirror image of
FedPer: device m takes E epochs of SGD on its local l_m and the global g jointly, keeps l_m and
returns g_m; the server averages g <- sum_m (N_m / N) g_m (`weighting=examples`) or uniformly.
The local model is the body, the global one the head. The auxiliary losses that the paper allows on
the local representations are not used.

The authors' code begins with a trained FedAvg model, of which every device takes its l_m:
the first `lg-fedavg-warmup-rounds` rounds do that, whole models travel in them, and the body at
their end goes on travelling down with the head, for a user that is drawn for the first time later
begins with it. With 0, the default, there is no such phase and only heads travel. FedRep's
comparison initialises all models at random (its section 5.2), so it stands for 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corsage.core.arrays import Arrays
from corsage.core.callbacks import Callback
from corsage.core.config import Config
from corsage.core.errors import ConfigError
from corsage.core.keys import Keys, key
from corsage.networks.network import Network
from corsage.strategies.rounds.base import Strategy


@dataclass(frozen=True)
class LGFedAvgKeys(Keys):
    """Keys of LG-FedAvg."""

    title = "LG-FedAvg"

    lg_fedavg_warmup_rounds: int = key(
        0, "the first so many rounds are FedAvg; users take their first body from its model", low=0
    )


class LGFedAvg(Strategy):
    """The server of LG-FedAvg: the global head g, and the body of the warm-up if there is one."""

    name = "lg-fedavg"

    def __init__(
        self,
        config: Config | Mapping[str, Any] | None = None,
        callbacks: Sequence[Callback] = (),
        experiment: str = "",
    ) -> None:
        super().__init__(config, callbacks, experiment)
        assert isinstance(self.keys, LGFedAvgKeys)
        self.warmup, rounds = self.keys.lg_fedavg_warmup_rounds, self.config.run.num_rounds
        if self.warmup >= rounds:
            raise ConfigError(
                f"lg-fedavg-warmup-rounds={self.warmup}: must be less than num-rounds={rounds}, "
                "or nothing of LG-FedAvg is left."
            )

    def initial(self, network: Network) -> Arrays:
        """g^0, and with a warm-up the rest of FedAvg's w_0."""
        head = {"head": network.initial[network.head]}
        return {"body": network.initial[network.body], **head} if self.warmup else head

    def template(self) -> Arrays:
        """Users return heads; whole models in the warm-up."""
        arrays = self.state.arrays
        return arrays if self.state.round < self.warmup else {"head": arrays["head"]}
