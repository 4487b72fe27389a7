"""FedLC: FedAvg whose users train with logits that make up for the classes they have few of.

Zhang, Li, Li, Xu, Wu, Ding, Wu: Federated Learning with Label Distribution Skew via Logits
Calibration, ICML 2022. User i has n_c samples of class c, and in training takes

    f_c(x) - tau n_c^(-1/4)                                                (its calibrated logit)

for f_c(x). A class that it has none of gets no weight, so that its users alone move it. The paper's
sum leaves the sample's own class out of the denominator, and then has no lower bound; this is the
cross-entropy of the calibrated logits, as implementations have it, and with tau = 0 FedAvg.
What users fine-tune at the end is for themselves, and without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from corsage.core.errors import ModelError
from corsage.core.keys import Keys, key
from corsage.strategies.rounds.base import GlobalModel
from corsage.strategies.rounds.prototypes import check_classes
from corsage.strategies.rounds.state import ModelState

if TYPE_CHECKING:
    from corsage.networks.network import Network


@dataclass(frozen=True)
class FedLCKeys(Keys):
    """Keys of FedLC."""

    title = "FedLC"

    fedlc_tau: float = key(
        1.0, "what a logit is less by for a class of one sample (tau); 0: FedAvg", low=0.0
    )


class FedLC(GlobalModel[FedLCKeys, ModelState]):
    """The server of FedLC is that of FedAvg."""

    name = "fedlc"
    own_loss = True

    def initial(self, network: Network) -> ModelState:
        """The first global model, whose outputs must be logits of classes."""
        check_classes(self, "it calibrates the logits of classes")
        if not network.split_exact:
            raise ModelError(
                f"fedlc: its loss needs a model with a body and a head: {network.why}."
            )
        return super().initial(network)
