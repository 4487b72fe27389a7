"""The losses of a federation's users, all at hand: what a federation is compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from corsage.core.losses import SQUARED_HINGE
from corsage.datasets.dealing.federated import simulated
from corsage.networks.training import to_tensors
from corsage.solvers.losses.linear_losses import LinearLosses
from tests.support.federations import settings


def central(**keys: Any) -> LinearLosses:
    """The same users' losses, all at hand."""
    config = settings("convex-clustering", **keys)
    data = simulated(config.data, 0, config.run.seed)
    users = [data[user] for user in data.users]
    x = np.concatenate([user.x_train for user in users])
    inputs, _ = to_tensors(x, np.zeros(len(x)), data.shift, data.scale)
    labels = np.concatenate([user.y_train for user in users])
    sizes = data.train_sizes
    return LinearLosses(
        inputs.double(), torch.from_numpy(labels.copy()), sizes,
        loss=SQUARED_HINGE, scale="mean", ridge=0.001,
    )  # fmt: skip
