"""Methods whose local step is more than one of SGD: their users in groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import numpy as np
from torch import Tensor

from corsage.core.arrays import Floats32
from corsage.core.configuration.groups import TrainKeys
from corsage.core.errors import ModelError
from corsage.networks.batches import Examples, Order
from corsage.networks.network import Network
from corsage.networks.together import stacked
from corsage.networks.together.descent import losses_of
from corsage.networks.together.gradients import BARE, UserLosses, training
from corsage.networks.together.parts import groups, users_together
from corsage.networks.training import seeded

Work = Callable[[UserLosses], Sequence[Tensor]]


def in_groups(
    network: Network,
    data: Examples,
    orders: Sequence[Sequence[Order]],
    vectors: int,
    work: Work,
    keys: TrainKeys = BARE,
) -> list[Floats32]:
    """The results of `work` for all users; it gets them in groups, in the quickest exact way.

    `orders[stream][user]` are the batches. `work` returns tensors with one row for each of
    `losses.users`; `vectors` is how many vectors of the model's size it holds for a user. The
    precision of gradients is that of `keys`.
    """
    if data.losses is not None:
        raise ModelError("a loss of its own is for methods whose local steps are those of SGD.")
    together = users_together(network, network.whole, vectors - 2, keys)
    if network.stackable and together and data.views is None:
        data = data.over(stacked.data_for(network, data.x))
    out: list[Floats32] = []
    todo = groups(orders[0], together or 1)
    with training(network):
        while todo:
            group = todo.pop(0)
            losses = losses_of(network, data, orders, group, keys, bool(together))
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
