"""FedProx: FedAvg whose users are held near the global model while they train.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys
2020, Algorithm 2. User k works on h_k(w; w^t) = F_k(w) + mu/2 |w - w^t|^2 (equation 2), inexactly:
by E epochs of SGD from w^t. mu = 0 is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass

from corsage.core.keys import Keys, key
from corsage.strategies.rounds.base import GlobalModel
from corsage.strategies.rounds.state import ModelState


@dataclass(frozen=True)
class FedProxKeys(Keys):
    """Keys of FedProx."""

    title = "FedProx"

    fedprox_mu: float = key(
        0.1,
        "strength mu of the proximal term mu/2 |w - w_t|^2; 0: FedAvg",
        tuned=(0.001, 1.0),
        low=0.0,
    )


class FedProx(GlobalModel[FedProxKeys, ModelState]):
    """The server of FedProx is that of FedAvg."""

    name = "fedprox"
