"""Users trained together by steps of SGD or of any optimizer, on matrices with one row a user.

`descended` is for any gradients, those of a module's own `forward` too: slower than `stacked`,
whose kernels take the steps of SGD themselves, and exact for the same networks. Losses with
smoothed labels or weighted classes, and images that change at each step, are no different there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from corsage.core.arrays import Floats32
from corsage.core.configuration.key_groups import TrainKeys
from corsage.networks.batches import Examples, Order
from corsage.networks.gradients import (
    BARE_KEYS,
    UserLosses,
    accumulate,
)
from corsage.networks.local_training import Job
from corsage.networks.network import Network
from corsage.networks.rules import update_rule
from corsage.networks.together import stacked
from corsage.networks.together.layers import Layer, Relu
from corsage.networks.together.stacked_gradients import StackedLosses, with_columns
from corsage.networks.together.traced import TracedLosses


def losses_of(
    network: Network,
    data: Examples,
    orders: Sequence[Sequence[Order]],
    group: Sequence[int],
    keys: TrainKeys = BARE_KEYS,
) -> UserLosses:
    """The losses of a group of users who are trained together."""
    kind = StackedLosses if network.stackable else TracedLosses
    return kind(network, data, orders, group, keys)


@torch.no_grad()
def descended(
    job: Job, rows: Floats32, group: list[int]
) -> tuple[list[int], Tensor, Tensor | None]:
    """The users in another order, their trained parts, and the centres of a pull that follow.

    `rows` are whole models, or with `job.head` heads.
    """
    network, part = job.network, slice(0, None) if job.head else job.part
    network.train()  # an evaluation may have been last
    losses, narrow = losses_of_part(job, group)
    theta = losses.rows(rows)
    own = theta[:, part]
    drift = None
    if job.pull is not None:
        size = own.shape[1]
        pull = job.pull.pick(losses.users)
        drift = pull.drift(slice(0, size), [size], len(own), 0.0, own)
    untrained = [
        stacked.moved(b.where, job.part.start) for b in network.blocks_of(job.part) if not b.trained
    ]
    update = update_rule(own, network.decay[job.part], job.keys)
    g = update.m if narrow or own.shape == theta.shape else torch.zeros_like(theta)
    every = job.pull.every if job.pull is not None else 0
    moves = any(b.trained for b in network.blocks_of(job.part))
    for t, n in enumerate(losses.active if moves else []):
        if g is update.m:
            losses.gradient(theta, t, g, update.beta)
        else:
            losses.gradient(theta, t, g)
            accumulate(update.m[:n], g[:n, part], update.beta)
        if drift is not None:
            drift.add(update.m[:n], own[:n])
            for where in untrained:
                update.m[:n, where] = 0.0
        update.step(n)
        if every and (t + 1) % every == 0 and drift is not None:
            drift.follow(own[:n])
            update.restart()
    centres = drift.centre if every and drift is not None else None
    return losses.users, own, centres


def losses_of_part(job: Job, group: list[int]) -> tuple[UserLosses, bool]:
    """The losses of a group, and whether their gradients are those of the part alone."""
    given = job.network, job.data, [job.orders], group
    if job.head:
        return HeadLosses(*given), False
    if job.network.stackable:
        return StackedLosses(*given), False
    return TracedLosses(*given, part=job.part), True


class HeadLosses(StackedLosses):
    """The losses of heads theta (users, P_head) on features: plain layers, one after the other."""

    def layers_of(self) -> None:
        """The layers of the head."""
        network, self.gather = self.network, stacked.flat_rows
        places = {id(b.tensor): stacked.moved(b.where, network.head.start) for b in network.blocks}
        self.layers, self.weighted, self.head_from = [], [], 0
        for module in network.head_layers:
            own: Layer = Relu()
            if isinstance(module, nn.Linear):
                pair = (module.weight, module.bias)
                own = with_columns(module, [places[id(p)] for p in pair if p is not None])
                self.weighted.append(own)
            self.layers.append(own)
