"""FedAvg: one model for all, optionally fine-tuned by each user at the end.

McMahan, Moore, Ramage, Hampson, Agueera y Arcas: Communication-Efficient Learning of Deep Networks
from Decentralized Data, AISTATS 2017. With `fine-tune-epochs` also the row "FedAvg+FT" of FedRep's
Table 1: after the last round each user trains the head of the global model on its own data.
"""

from __future__ import annotations

from corsage.core.keys import NoKeys
from corsage.strategies.rounds.base import GlobalModel
from corsage.strategies.rounds.state import ModelState


class FedAvg(GlobalModel[NoKeys, ModelState]):
    """The server of FedAvg: it holds the whole model w, the mean of the users'."""

    name = "fedavg"
