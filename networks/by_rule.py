"""Users trained together by any optimizer: the gradients of all of them, then its step.

Slower than `stacked`, whose kernels take the steps of SGD themselves, and exact for the same
networks. Losses with smoothed labels or weighted classes, and images that change at each step, are
no different here.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corsage.core.arrays import Floats32
from corsage.networks import stacked
from corsage.networks.gradients import StackedLosses, UserLosses, with_columns
from corsage.networks.job import Job
from corsage.networks.rules import update_rule


@torch.no_grad()
def trained_by_rule(
    job: Job, rows: Floats32, group: list[int]
) -> tuple[list[int], Tensor, Tensor | None]:
    """The users in another order, their trained parts, and the centres of a pull that follow.

    `rows` are whole models, or with `job.head` heads.
    """
    network, part = job.network, slice(0, None) if job.head else job.part
    kind = HeadLosses if job.head else StackedLosses
    losses: UserLosses = kind(network, job.data, [job.orders], group)
    theta = losses.rows(rows)
    own = theta[:, part]
    drift = None
    if job.pull is not None:
        size = own.shape[1]
        pull = job.pull.pick(losses.users)
        drift = pull.drift(slice(0, size), [size], len(own), 0.0, own)
    update = update_rule(own, network.decay[job.part], job.keys)
    g = torch.zeros_like(theta)
    every = job.pull.every if job.pull is not None else 0
    for t, n in enumerate(losses.active):
        losses.gradient(theta, t, g)
        grad = g[:n, part]
        if drift is not None:
            drift.add(grad, own[:n])
        update.m[:n].mul_(update.beta).add_(grad)
        update.step(n)
        if every and (t + 1) % every == 0 and drift is not None:
            drift.follow(own[:n])
            update.restart()
    centres = drift.centre if every and drift is not None else None
    return losses.users, own.clone(), centres


class HeadLosses(StackedLosses):
    """The losses of linear heads theta (users, P_head) on features."""

    def layers_of(self) -> None:
        """One layer: the head."""
        network = self.network
        module, first = network.head_module, network.head.start
        assert isinstance(module, nn.Linear)
        places = {id(b.tensor): stacked.moved(b.where, first) for b in network.blocks}
        own = with_columns(
            module, [places[id(p)] for p in (module.weight, module.bias) if p is not None]
        )
        self.gather, self.layers, self.weighted = stacked.flat_rows, [own], [own]
