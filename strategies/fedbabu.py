"""FedBABU: the body is trained under a head that is never trained; users fine-tune at the end.

Oh, Kim, Yun: FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR 2022,
Algorithm 1. In round k client i takes tau epochs of SGD from theta_{G,ext}^{k-1} under theta_cls^0,
the same random head for all; the server averages theta_{i,ext}^k, uniformly or by n_i / n
(`weighting=examples`). Row fedbabu is theta_G^K; for fedbabu+ft-all, the paper's personalised
models, each user has fine-tuned all of it for tau_f epochs (`fine-tune-epochs`), for fedbabu+ft its
head alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corsage.core.errors import ModelError
from corsage.core.keys import NoKeys
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.state import BodyState

if TYPE_CHECKING:
    from corsage.networks.network import Network


class FedBABU(Strategy[NoKeys, BodyState]):
    """The server of FedBABU: it holds the body theta_{G,ext}."""

    name = "fedbabu"
    tuned = ("head", "all")

    def initial(self, network: Network) -> BodyState:
        """theta_{G,ext}^0."""
        if network.body.stop == 0:
            raise ModelError("fedbabu: the model is a head and nothing else; take model=mlp.")
        return BodyState(network.initial[network.body])
