"""Methods whose local step is more than one of SGD: users in groups, and the step's common end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor

from corsage.core.arrays import Floats32
from corsage.core.errors import ModelError
from corsage.core.groups import TrainKeys
from corsage.networks import stacked
from corsage.networks.batches import Examples, Order
from corsage.networks.gradients import AutogradLosses, StackedLosses, UserLosses, training
from corsage.networks.network import Network
from corsage.networks.parts import groups, users_together
from corsage.networks.training import seeded

Work = Callable[[UserLosses], Sequence[Tensor]]


def in_groups(
    network: Network, data: Examples, orders: Sequence[Sequence[Order]], vectors: int, work: Work
) -> list[Floats32]:
    """What `work` gives for all users; it gets them in groups, in the quickest way that is exact.

    `orders[stream][user]` are the batches. `work` returns tensors with one row for each of
    `losses.users`; `vectors` is how many vectors of the model's size it holds for a user.
    """
    if data.losses is not None:
        raise ModelError("a loss of its own is for methods whose local steps are those of SGD.")
    together = users_together(network, network.whole, vectors - 2)
    if together:
        data = data.over(stacked.data_for(network, data.x))
    out: list[Floats32] = []
    todo = groups(orders[0], together or 1)
    with training(network):
        while todo:
            group = todo.pop(0)
            kind = StackedLosses if together else AutogradLosses
            losses = kind(network, data, orders, group)
            with nullcontext() if together else seeded(network, orders[0][group[0]]):
                found = [rows.cpu().numpy() for rows in work(losses)]
            if len(group) > 1 and not all(np.isfinite(rows).all() for rows in found):
                # A grouped convolution may mix another user's NaN in: see parts.train_group.
                todo = [[u] for u in group] + todo
                continue
            out = out or [np.empty((len(data), *rows.shape[1:]), np.float32) for rows in found]
            for whole, rows in zip(out, found, strict=True):
                whole[losses.users] = rows
    return out


class Momentum:
    """SGD with momentum and weight decay on theta (users, P), the gradient given through `m`.

    m <- mu m + g is the caller's, by `losses.gradient(..., out=m, beta=mu)`; `step` does the rest:
    m <- m + weight_decay theta where `weights` is 1, theta <- theta - lr m.
    """

    def __init__(self, theta: Tensor, weights: Tensor, keys: TrainKeys) -> None:
        self.theta, self.keys = theta, keys
        self.m = torch.zeros_like(theta)
        self.decay = weights * keys.decay if keys.decay else None

    def step(self, active: int) -> None:
        """The step of the first users."""
        theta, m = self.theta[:active], self.m[:active]
        if self.decay is not None:
            m.addcmul_(theta, self.decay)
        theta.add_(m, alpha=-self.keys.lr)
