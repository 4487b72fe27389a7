"""FedBN: FedAvg but for the layers that normalise by the batch, which stay with each user.

Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization, ICLR 2021, Algorithm 1. Weights, biases and running statistics of these layers are a
user's own; all else is averaged. A model without such layers is FedAvg's.

`batch-norm=personal` does the same for methods whose users keep a head as well.
"""

from __future__ import annotations

from corsage.core.keys import NoKeys
from corsage.strategies.rounds.base import GlobalModel
from corsage.strategies.rounds.state import ModelState


class FedBN(GlobalModel[NoKeys, ModelState]):
    """The server of FedBN: its model has the layers that normalise as they were at first."""

    name = "fedbn"
    tuned = ("all",)
