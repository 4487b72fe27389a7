"""How models are judged: what they put out for samples, and what is reported of their scores."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from corsage.clients.parts.contract import Models
from corsage.networks.batches import Examples
from corsage.networks.evaluation import (
    Scores,
    outputs_of_heads,
    outputs_of_models,
    outputs_of_picked,
)
from corsage.networks.network import Network


def outputs_of(network: Network, models: Models, data: Examples) -> Tensor:
    """What models put out for the users' samples."""
    if models.heads is not None:
        return outputs_of_heads(network, models.whole, models.heads, data)
    if models.picked is not None:
        return outputs_of_picked(network, models.whole, models.picked, data)
    return outputs_of_models(network, models.whole, data)


def report(scores: Scores) -> dict[str, NDArray[Any]]:
    """Scores as numbers of each user; those without test samples have no loss."""
    loss = np.divide(scores.loss, scores.n, out=np.zeros(len(scores.n)), where=scores.n > 0)
    return {**scores.counts, "loss": loss, "num-examples": scores.n}
