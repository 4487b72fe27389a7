"""Several users' models trained together through a module's own `forward`.

The gradient of all users (`losses_of`) and the step of SGD on matrices with one row a user.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from corsage.core.arrays import Floats32
from corsage.core.groups import TrainKeys
from corsage.networks.batches import Examples, Order
from corsage.networks.gradients import BARE, AutogradLosses, StackedLosses, UserLosses, training
from corsage.networks.job import Job
from corsage.networks.network import Network
from corsage.networks.pull import Drift, Pull
from corsage.networks.traced import TracedLosses


def losses_of(
    network: Network,
    data: Examples,
    orders: Sequence[Sequence[Order]],
    group: Sequence[int],
    keys: TrainKeys = BARE,
    together: bool = True,
) -> UserLosses:
    """The losses of a group of users who are trained together, or of one who is alone."""
    kind: type[AutogradLosses | StackedLosses] = AutogradLosses
    if together:
        kind = StackedLosses if network.stackable else TracedLosses
    return kind(network, data, orders, group, keys)


def descended(
    job: Job, rows: Floats32, group: list[int]
) -> tuple[list[int], Tensor, Tensor | None]:
    """Users in the order of the rows, their trained part, and the centres if these followed.

    `rows` are whole models (users, P).
    """
    losses = TracedLosses(job.network, job.data, [job.orders], group, part=job.part)
    pull = job.pull and job.pull.pick(losses.users)
    theta, centres = losses.rows(rows), None
    with training(job.network):
        if losses.trained:
            centres = descend(losses, theta[:, job.part], theta, job, pull)
    return losses.users, theta[:, job.part], centres


def descend(
    losses: TracedLosses, w: Tensor, theta: Tensor, job: Job, pull: Pull | None
) -> Tensor | None:
    """All steps on w, a part of theta, in place; the centres of the pull, if they follow.

    m <- mu m + g + weight_decay w + drift; w <- w - lr m, as `training.sgd` has it.
    """
    keys, every = job.keys, pull.every if pull is not None else 0
    m = torch.zeros_like(w, memory_format=torch.contiguous_format)
    decay = job.network.decay[job.part] * keys.decay if keys.decay else None
    drift = None if pull is None else whole_drift(pull, w)
    for t, n in enumerate(losses.active):
        losses.gradient(theta, t, m, keys.momentum)
        if drift is not None:
            drift.add(m[:n], w[:n])
            for where in losses.constant:
                m[:n, where] = 0.0
        if decay is not None:
            m[:n].addcmul_(w[:n], decay)
        w[:n].add_(m[:n], alpha=-keys.lr)
        if drift is not None and every and (t + 1) % every == 0:
            drift.follow(w[:n])
            m.zero_()
    return drift.centre if drift is not None and every else None


def whole_drift(pull: Pull, w: Tensor) -> Drift:
    """What a pull adds to the gradients of all users (users, P_part)."""
    users, size = w.shape
    return pull.drift(slice(0, size), [size], users, 0.0, w)
