"""Per-FedAvg at the users: steps on the loss after a step, and that step before the evaluation.

Fallah, Mokhtari, Ozdaglar 2020, Algorithm 1, client side.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from corsage.clients.base import Client, Got, Models, Sent
from corsage.core.configuration.key_groups import TrainKeys
from corsage.core.messages.asked import Takes, floats
from corsage.networks.batches import Examples
from corsage.networks.gradients import Losses, UserLosses, in_groups
from corsage.networks.rules import update_rule
from corsage.strategies.perfedavg import PerFedAvgKeys

STREAMS = ("D", "D'", "D''")
GRADIENTS = {"fo": 2, "hf": 4, "exact": 4}
"""Gradients of a local step, by variant; a Hessian's product costs as much as two."""
CHUNK_GRADIENTS = 128  # samples that go through the network at once for a gradient over all of them


class PerFedAvgClient(Client[PerFedAvgKeys]):
    """The users of Per-FedAvg; they keep nothing."""

    takes = Takes(shared={"model": floats("P")})

    def train(self, got: Got, data: Examples) -> Sent:
        """w_i <- tau steps on F_i from w."""
        keys = self.keys
        streams = STREAMS[:2] if keys.perfedavg_variant == "fo" else STREAMS
        orders = [self.orders(f"perfedavg {name}", data) for name in streams]
        self.count(map(len, orders[0]), gradients=GRADIENTS[keys.perfedavg_variant])

        def work(losses: UserLosses) -> tuple[Tensor]:
            w = losses.rows(got.shared["model"])
            meta_steps(losses, w, self.network.decay, keys, self.settings)
            return (w,)

        (w_i,) = in_groups(self.network, data, orders, 4, work, self.settings)
        return Sent(mean={"model": w_i})

    def models(self, got: Got) -> Models:
        """Each user's w - alpha nabla f_i(w)."""
        steps = self.keys.perfedavg_adapt_steps
        if not steps:
            return Models(got.shared["model"])
        return self.adapt(got, self.train_data(got), steps)

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """A new user does the same; a step takes all its data, so it is an epoch."""
        if not epochs:
            return Models(got.shared["model"])
        self.count(epochs)
        chunks = [
            np.split(np.arange(n), range(CHUNK_GRADIENTS, n, CHUNK_GRADIENTS)) for n in data.sizes
        ]

        data = replace(data, views=None)  # all of its data, as they are

        def work(losses: UserLosses) -> tuple[Tensor]:
            w = losses.rows(got.shared["model"])
            sizes = torch.from_numpy(data.sizes[losses.users]).to(w.device)
            for _ in range(epochs):
                gradient_step(losses, w, sizes, self.keys.perfedavg_alpha)
            return (w,)

        (own,) = in_groups(self.network, data, [chunks], 2, work, self.settings)
        return Models(own)


def meta_steps(
    losses: Losses, w: Tensor, weights: Tensor, keys: PerFedAvgKeys, train: TrainKeys
) -> None:
    """All local steps of Algorithm 1 on w (users, P), in place; stream 0, 1, 2 is D, D', D''.

    `weights` is 1 where weight decay applies.
    """
    alpha, delta = keys.perfedavg_alpha, keys.perfedavg_delta
    sgd, near, g = update_rule(w, weights, train), torch.empty_like(w), torch.empty_like(w)
    for t, n in enumerate(losses.active):
        near[:n] = w[:n]
        losses.gradient(w, t, near, 1.0, -alpha, stream=0)  # wtilde
        if keys.perfedavg_variant == "fo":
            losses.gradient(near, t, sgd.m, sgd.beta, stream=1)
        else:
            losses.gradient(near, t, g, stream=1)
            sgd.m[:n].mul_(sgd.beta).add_(g[:n])
        if keys.perfedavg_variant == "exact":
            losses.product(w, g, t, sgd.m, -alpha, 2)
        elif keys.perfedavg_variant == "hf":
            for sign in (1.0, -1.0):
                torch.add(w[:n], g[:n], alpha=sign * delta, out=near[:n])
                losses.gradient(near, t, sgd.m, 1.0, -sign * alpha / (2 * delta), stream=2)
        sgd.step(n)


def gradient_step(losses: Losses, w: Tensor, sizes: Tensor, alpha: float) -> None:
    """w <- w - alpha nabla f_i(w) with all of the users' `sizes` samples, in place.

    The steps of `losses` are chunks of the samples; each counts by its share of them.
    """
    g = torch.zeros_like(w)
    for t in range(len(losses.active)):
        share = (sizes - t * CHUNK_GRADIENTS).clamp(max=CHUNK_GRADIENTS) / sizes
        losses.gradient(w, t, g, 1.0, share)
    w.sub_(g, alpha=alpha)
