"""Sums of users' test samples, by which a row is compared with others on the same samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from corsage.core.arrays import Floats, Floats32
from corsage.core.pairs.noise import dealt
from corsage.core.pairs.sums import LARGEST_SUM, least_samples
from corsage.networks.batches import Examples
from corsage.networks.outcome_counts import Outcome

if TYPE_CHECKING:
    from corsage.clients.base import Client


def right(outcome: Outcome) -> Floats:
    """1 where the answer is right."""
    return outcome.criterion.counted(outcome.outputs, outcome.data.y).double().cpu().numpy()


def log_loss(outcome: Outcome) -> Floats:
    """Minus the log of the chance of the right class."""
    return np.asarray(-outcome.log_chances[np.arange(len(outcome.y)), outcome.y])


def absolute(outcome: Outcome) -> Floats:
    """The absolute error."""
    return np.abs(outcome.answers - outcome.y)


def square(outcome: Outcome) -> Floats:
    """The squared error."""
    return np.square(outcome.answers - outcome.y)


ADDED: dict[str, Callable[[Outcome], Floats]] = {
    "accuracy": right,
    "log-loss": log_loss,
    "mae": absolute,
    "mse": square,
    "rmse": square,
}
"""The values of samples that each measure adds up."""


def sums(client: Client[Any], outputs: Tensor, data: Examples, most: int) -> Floats32:
    """Each user's sums (users, most), as they may leave its machine; 0 where it has no more."""
    measure = client.measures[0]
    found: Floats = np.zeros(len(data) * most)
    if len(data.y):
        least = least_samples(measure, client.at_home)
        outcome = Outcome(client.network.criterion, outputs, data)
        places = np.concatenate([dealt(int(n), most, least) for n in data.sizes])
        values = ADDED[measure.name](outcome)
        found = np.bincount(outcome.user * most + places, values, len(found)).astype(np.float64)
    return found.clip(-LARGEST_SUM, LARGEST_SUM).astype(np.float32).reshape(len(data), most)
