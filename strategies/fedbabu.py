"""FedBABU: the body is trained under a head that is never trained; users fine-tune at the end.

Oh, Kim, Yun: FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR 2022,
Algorithm 1. In round k client i takes tau epochs of SGD from theta_{G,ext}^{k-1} under theta_cls^0,
the same random head for all; the server averages theta_{i,ext}^k, uniformly or by n_i / n
(`weighting=examples`). Row fedbabu is theta_G^K; for fedbabu+ft, the paper's personalised models,
each user has fine-tuned it for tau_f epochs (`fine-tune-epochs`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from corsage.core.errors import ModelError
from corsage.core.keys import Keys, key
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.state import BodyState

if TYPE_CHECKING:
    from corsage.networks.network import Network


@dataclass(frozen=True)
class FedBABUKeys(Keys):
    """Keys of FedBABU."""

    title = "FedBABU"

    fedbabu_fine_tune: str = key("full", "the part that users fine-tune", choices=("full", "head"))


class FedBABU(Strategy[FedBABUKeys, BodyState]):
    """The server of FedBABU: it holds the body theta_{G,ext}."""

    name = "fedbabu"

    def initial(self, network: Network) -> BodyState:
        """theta_{G,ext}^0."""
        if network.body.stop == 0:
            raise ModelError("fedbabu: the model is a head and nothing else; take model=mlp.")
        return BodyState(network.initial[network.body])

    def extra_evaluations(self) -> dict[str, dict[str, Any]]:
        """Each user's own model: the row fedbabu+ft."""
        return {"fedbabu+ft": {"fine-tune": True}} if self.config.train.fine_tune_epochs else {}
