"""LG-FedAvg: local representations, one global head.

Liang, Liu, Liu, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act Globally:
Federated Learning with Local and Global Representations, 2020, Algorithm 1. The mirror image of
FedPer: device m takes E epochs of SGD on its local l_m and the global g jointly, keeps l_m and
returns g_m; the server averages g <- sum_m (N_m / N) g_m (`weighting=examples`) or uniformly.
The local model is the body, the global one the head; with the keys `shared` or `personal` it is as
these say. The authors' own split on CIFAR-10 is head=fc2,fc3 (or shared=fc2,fc3): all but the
convolutions and the first linear layer is global. The auxiliary losses that the paper allows on the
local representations are not used.

The authors' code begins with a trained FedAvg model, of which every device takes its l_m:
the first `lg-fedavg-warmup-rounds` rounds do that, whole models travel in them, and the body at
their end goes on travelling down with the head, for a user that is drawn for the first time later
begins with it. With 0, the default, there is no such phase and only heads travel. FedRep's
comparison initialises all models at random (its section 5.2), so it stands for 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from corsage.core.arrays import Arrays, Floats32
from corsage.core.configuration.key_groups import ModelKeys
from corsage.core.errors import ConfigError
from corsage.core.keys import Keys, key
from corsage.strategies.rounds.base import Strategy

if TYPE_CHECKING:
    from corsage.networks.network import Network


@dataclass(frozen=True)
class LGFedAvgKeys(Keys):
    """Keys of LG-FedAvg."""

    title = "LG-FedAvg"

    lg_fedavg_warmup_rounds: int = key(
        0, "the first so many rounds are FedAvg; users take their first body from its model", low=0
    )


@dataclass
class LGFedAvgState:
    """g, and of the warm-up, if there is one, the rest of the model: by default g is the head."""

    body: Floats32 | None
    head: Floats32 | None


def local_and_global(model: ModelKeys) -> tuple[str, str]:
    """The names of the parts of the model that are l_m and g."""
    return ("head", "body") if model.shared or model.personal else ("body", "head")


class LGFedAvg(Strategy[LGFedAvgKeys, LGFedAvgState]):
    """The server of LG-FedAvg: the global g, and the rest of the warm-up if there is one."""

    name = "lg-fedavg"
    tuned = ("own",)

    def prepare(self) -> None:
        """The warm-up must not be all there is; what is a user's own must not become the rest."""
        model = self.config.model
        if model.batch_norm == "personal" and local_and_global(model)[0] == "body":
            raise ConfigError(
                "batch-norm=personal: with lg-fedavg all but the head is a user's own, these "
                "layers too; leave it out, or say by shared=... what is shared."
            )
        warmup, rounds = self.keys.lg_fedavg_warmup_rounds, self.config.run.num_rounds
        if warmup >= rounds:
            raise ConfigError(
                f"lg-fedavg-warmup-rounds={warmup}: must be less than num-rounds={rounds}, "
                "or nothing of LG-FedAvg is left."
            )

    def initial(self, network: Network) -> LGFedAvgState:
        """g^0, and with a warm-up the rest of FedAvg's w_0."""
        parts = {"body": network.initial[network.body], "head": network.initial[network.head]}
        own, _ = local_and_global(self.config.model)
        if not self.keys.lg_fedavg_warmup_rounds:
            return LGFedAvgState(**{**parts, own: None})
        return LGFedAvgState(**parts)

    def template(self) -> Arrays:
        """Users return g; whole models in the warm-up."""
        if self.progress.round < self.keys.lg_fedavg_warmup_rounds:
            return self.shared()
        _, common = local_and_global(self.config.model)
        return {common: self.shared()[common]}
