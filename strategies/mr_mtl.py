"""MR-MTL: every user has a model of its own, which is held near the mean of all of them.

Liu, Hu, Wu, Smith: On Privacy and Personalization in Cross-Silo Federated Learning, NeurIPS 2022:
mean-regularised multi-task learning. In a round user k takes SGD from its own w_k on

    F_k(w) + lambda/2 |w - w_mean|^2,

and sends w_k, of which the server keeps the mean alone. lambda = 0 is local training. Ditto has the
same pull to a model of FedAvg's; here nobody trains another model than its own. (The paper adds
noise for privacy of records, which a server-side wrapper or a mod of Flower's may do.)
"""

from __future__ import annotations

from dataclasses import dataclass

from corsage.core.keys import Keys, key
from corsage.strategies.rounds.base import OneModel
from corsage.strategies.rounds.state import ModelState


@dataclass(frozen=True)
class MRMTLKeys(Keys):
    """Keys of MR-MTL."""

    title = "MR-MTL"

    mr_mtl_lambda: float = key(
        1.0, "strength lambda of the pull to the mean of all models; 0: local", low=0.0
    )


class MRMTL(OneModel[MRMTLKeys, ModelState]):
    """The server of MR-MTL: it holds the mean of the users' models."""

    name = "mr-mtl"
