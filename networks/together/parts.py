"""Several users of a node trained together: heads on cached features, bodies, whole models.

Given the same batches, every function here returns what the loop over the users returns
(`networks/local_training.py`), up to float rounding (1e-5); each picks the quickest way that is
exact for the network.

`descended` is for any gradients, those of a module's own `forward` too: slower than `stacked`,
whose kernels take the steps of SGD themselves, and exact for the same networks. Losses with
smoothed labels or weighted classes, and images that change at each step, are no different there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from corsage.core.arrays import Floats32
from corsage.core.configuration.key_groups import TrainKeys
from corsage.networks.batches import Examples, Order
from corsage.networks.gradients import BARE_KEYS, UserLosses, accumulate
from corsage.networks.local_training import Job
from corsage.networks.network import Network
from corsage.networks.rules import update_rule, vectors_of
from corsage.networks.together import stacked
from corsage.networks.together.layers import Layer, Relu
from corsage.networks.together.stacked_gradients import StackedLosses, with_columns
from corsage.networks.together.traced import TracedLosses

Way = Callable[[Job, Floats32, list[int]], tuple[list[int], Tensor, Tensor | None]]
MOST_TOGETHER = 32
GROUPED_CHANNELS = 16
IN_CACHE = 13_000_000


def groups(orders: Sequence[Order], size: int) -> list[list[int]]:
    """Users in groups of alike numbers of steps, so that few wait for others."""
    by_steps = sorted(range(len(orders)), key=lambda u: -len(orders[u]))
    return [by_steps[i : i + size] for i in range(0, len(by_steps), size)]


def users_of(job: Job) -> int:
    """The number of users whose parts are trained in one go; 0: one after the other."""
    if job.data.losses is not None and not job.network.split_exact:  # which is refused
        return 0
    more = job.pull.own_rows if job.pull is not None else 0
    return users_together(job.network, job.part, more, job.keys)


def train_several(job: Job, rows: Floats32) -> Floats32 | None:
    """The users' trained parts, of models `rows` (users, P); None: one after the other."""
    if not (together := users_of(job)):
        return None
    network, part = job.network, job.part
    if network.stackable and job.data.views is None:
        job = replace(job, data=job.data.over(stacked.data_for(network, job.data.x)))
    if len(job.orders) == 1 and part == network.whole:
        return only_one(job, rows)
    out = np.empty((len(job.orders), part.stop - part.start), np.float32)
    for group in groups(job.orders, together):
        train_group(job, rows, group, out)
    return out


def train_several_heads(job: Job, heads: Floats32) -> Floats32 | None:
    """Heads (users, P_head) of linear layers of many users at once, on their features.

    Every step is one batched product a layer and side; users with fewer steps drop out as they
    finish. None: they are no linear layers, and trained one after the other.
    """
    network = job.network
    trained = all(b.trained for b in network.blocks_of(network.head))
    if not network.head_layers or not trained or job.keys.mixed_precision != "none":
        return None
    out = np.array(heads, np.float32)
    fit = IN_CACHE // (2 * 4 * max(heads.shape[1], 1))
    for group in groups(job.orders, max(1, min(MOST_TOGETHER, fit))):
        train_group(job, out, group, out)
    return out


def only_one(job: Job, rows: Floats32) -> Floats32:
    """The whole model of an only user (1, P): no copy of it is made to hand it over."""
    network = job.network
    _, result, centres = way_of(job)(job, rows, [0])
    if job.pull is not None and centres is not None:
        job.pull.centre[[0]] = centres.cpu().numpy()
    if result.data_ptr() != network.flat.data_ptr():
        values: Floats32 = result.cpu().numpy()
        return values
    return network.vector.give()[None]


def train_group(job: Job, rows: Floats32, group: list[int], out: Floats32) -> None:
    """Users together; alone if one of them diverges.

    A grouped convolution may fill its blocks with other users' channels at weight 0, and
    0 * NaN is NaN.
    """
    users, result, centres = way_of(job)(job, rows, group)
    values = result.cpu().numpy()
    mixed = job.data.x.dim() == 4 or not (job.head or job.network.stackable)
    if mixed and len(group) > 1 and not np.isfinite(values).all():
        for u in group:
            train_group(job, rows, [u], out)
        return
    out[users] = values
    if job.pull is not None and centres is not None:
        job.pull.centre[users] = centres.cpu().numpy()


def way_of(job: Job) -> Way:
    """The quickest way to train users together."""
    plain = job.keys.plain and job.data.objective is None and job.data.views is None
    kernels = plain and job.data.losses is None and (job.head or job.network.stackable)
    return stacked.train_stacked if kernels else descended


def users_together(
    network: Network, part: slice, more: int = 0, keys: TrainKeys | None = None
) -> int:
    """The number of users whose models are trained in one go; 0: one by one through autograd.

    Of chains of plain layers a rule says it, of others the network's path, which was measured.
    Milliseconds a step and user, batch 10, for 1, 5, 10, 20 users at once: MLP .198, .143, .141,
    .181 (parameters and momentum of 20 leave the cache; `more` says how many vectors a user has
    besides these); LeNet-5 .944, .405, .358, .384; PFLlib's CNN 2.85, 2.98, 3.36 (one at a time;
    3.07 through autograd).
    """
    if keys is not None and keys.mixed_precision != "none":
        return 0
    if not network.stackable:
        return network.path.users
    if keys is not None and not keys.plain:
        more += vectors_of(keys)
    fit: int = IN_CACHE // ((2 + more) * 4 * max(part.stop - part.start, 1))
    if network.widest_convolution > GROUPED_CHANNELS:
        return 1
    return max(1, min(10 if network.widest_convolution else MOST_TOGETHER, fit))


class SeveralLosses:
    """Losses of users in groups that are worked for at once.

    Parameters
    ----------
    groups : numbers of the users who are together.
    """

    def __init__(
        self,
        network: Network,
        data: Examples,
        orders: Sequence[Sequence[Order]],
        keys: TrainKeys,
        together: int,
    ) -> None:
        if network.stackable and data.views is None:
            data = data.over(stacked.data_for(network, data.x))
        self.groups = groups(orders[0], together)
        self._of = partial(losses_of, network, data, orders, keys=keys)

    def losses(self, group: Sequence[int]) -> UserLosses:
        """Those of a group."""
        return self._of(group)


def several_losses(
    network: Network,
    data: Examples,
    orders: Sequence[Sequence[Order]],
    vectors: int,
    keys: TrainKeys,
) -> SeveralLosses | None:
    """The users' losses on their batches, several users at once; None: one after the other.

    `vectors` is how many vectors of the model's size are held for a user.
    """
    together = users_together(network, network.whole, vectors - 2, keys)
    return SeveralLosses(network, data, orders, keys, together) if together else None


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
