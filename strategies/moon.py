"""MOON: FedAvg whose users stay near the global model's features, and leave their own last ones.

Li, He, Song: Model-Contrastive Federated Learning, CVPR 2021, Algorithm 1. For a sample x let z,
z_glob and z_prev be its features under the model that is trained, the global one and the one that
the user sent last. The loss of x is its usual one and mu times

    -log e^(sim(z, z_glob) / tau) / (e^(sim(z, z_glob) / tau) + e^(sim(z, z_prev) / tau))       (3)

with sim the cosine. A user that has sent none has no such term. With mu = 0 this is FedAvg.

Features are what goes into the head: the paper puts a projection of two layers before it, which is
here part of the body, if the model has one. z_glob and z_prev are of models that predict, and are
computed once a round. What users fine-tune at the end is without the term.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from corsage.core.keys import Keys, key
from corsage.strategies.rounds.base import GlobalModel
from corsage.strategies.rounds.prototypes import check_features
from corsage.strategies.rounds.state import ModelState

if TYPE_CHECKING:
    from corsage.networks.network import Network


@dataclass(frozen=True)
class MOONKeys(Keys):
    """Keys of MOON."""

    title = "MOON"

    moon_mu: float = key(1.0, "weight mu of the contrast; 0: FedAvg", tuned=(0.1, 10.0), low=0.0)
    moon_tau: float = key(0.5, "temperature tau of the contrast", tuned=(0.1, 1.0), low=1e-3)


class MOON(GlobalModel[MOONKeys, ModelState]):
    """The server of MOON is that of FedAvg."""

    name = "moon"

    def unused(self, name: str) -> str:
        """The features of images that change at each step would not be those of the others."""
        return "its features are computed once a round" if name == "augment" else ""

    def initial(self, network: Network) -> ModelState:
        """The first global model, which must have features to contrast."""
        check_features(self, network, "it contrasts a body's features")
        return super().initial(network)
