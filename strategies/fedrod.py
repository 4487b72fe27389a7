"""FedRoD: a generic model that is fair to all classes, and a personal head on top of it.

Chen, Chao: On Bridging Generic and Personalized Federated Learning for Image Classification, ICLR
2022, with linear personal heads. The generic model, a body theta and a head psi, is averaged as in
FedAvg, but trained with the balanced softmax loss. User m's personal head phi_m is added to psi:
that sum predicts for the user, and is trained on the user's ordinary loss.

Here phi_m takes its epochs first, at theta^t and psi^t as they came; the paper takes the steps of
both by turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from corsage.core.configuration.key_groups import TrainKeys
from corsage.core.errors import ModelError
from corsage.core.keys import EPOCH_LIMIT, Keys, key
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.state import ModelState

if TYPE_CHECKING:
    from corsage.networks.network import Network


@dataclass(frozen=True)
class FedRoDKeys(Keys):
    """Keys of FedRoD."""

    title = "FedRoD"

    fedrod_epochs: int = key(1, "epochs a round of the personal head", low=0, limit=EPOCH_LIMIT)


class FedRoD(Strategy[FedRoDKeys, ModelState]):
    """The server of FedRoD: it holds the generic model (theta, psi), and knows no phi_m."""

    name = "fedrod"
    own_loss = True

    @classmethod
    def epochs(cls, train: TrainKeys, keys: FedRoDKeys) -> float:
        """The generic model and the personal heads are trained."""
        return train.local_epochs + keys.fedrod_epochs

    def initial(self, network: Network) -> ModelState:
        """theta^0 and psi^0."""
        if self.job.loss != "cross-entropy":
            raise ModelError("fedrod: it balances classes; take loss=cross-entropy.")
        if not network.split_exact:
            raise ModelError(f"fedrod: it needs a model with a body and a head: {network.why}.")
        return ModelState(network.initial)
