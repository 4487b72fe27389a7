"""Per-FedAvg at the users: steps on the loss after a step, and that step before the evaluation.

Fallah, Mokhtari, Ozdaglar 2020, Algorithm 1, client side.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corsage.clients.base import Client, Evaluation, Fit
from corsage.core.config import TrainKeys
from corsage.networks.gradients import Losses, UserLosses
from corsage.networks.steps import Momentum, in_groups
from corsage.networks.training import evaluate_models
from corsage.strategies.perfedavg import PerFedAvgKeys

STREAMS = ("D", "D'", "D''")
CHUNK = 128  # samples that go through the network at once for a gradient over all of them


class PerFedAvgClient(Client):
    """The users of Per-FedAvg; they keep nothing."""

    def fit(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """w_i <- tau steps on F_i from w."""
        (model,) = parameters
        data, keys = self.train_data(), self._keys()
        epochs = self.settings.local_epochs
        streams = STREAMS if keys.perfedavg_variant == "hf" else STREAMS[:2]
        orders = [self.orders(f"perfedavg {name}", data, epochs) for name in streams]

        def work(losses: UserLosses) -> tuple[Tensor]:
            w = losses.rows(model)
            meta_steps(losses, w, self.network.decay, keys, self.settings)
            return (w,)

        (models,) = in_groups(self.network, data, orders, 4, work)
        return [models], int(data.sizes.sum()), {"num-examples": data.sizes}

    def evaluate(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """Each user's w - alpha nabla f_i(w)."""
        return self._adapted(parameters[0], self._keys().perfedavg_adapt_steps)

    def adapt(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """A new user does the same; a step takes all its data, so it is an epoch."""
        return self._adapted(parameters[0], int(config["adapt-epochs"]))

    def _adapted(self, model: NDArray[Any], steps: int) -> Evaluation:
        """The users' own models after some gradient steps from the common one."""
        if not steps:
            return self.report(evaluate_models(self.network, model, self.test_data()))
        data, alpha = self.train_data(), self._keys().perfedavg_alpha
        chunks = [np.split(np.arange(n), range(CHUNK, n, CHUNK)) for n in data.sizes]

        def work(losses: UserLosses) -> tuple[Tensor]:
            w = losses.rows(model)
            sizes = torch.from_numpy(data.sizes[losses.users]).to(w.device)
            for _ in range(steps):
                gradient_step(losses, w, sizes, alpha)
            return (w,)

        (models,) = in_groups(self.network, data, [chunks], 2, work)
        return self.report(evaluate_models(self.network, models, self.test_data()))

    def _keys(self) -> PerFedAvgKeys:
        assert isinstance(self.task.keys, PerFedAvgKeys)
        return self.task.keys


def meta_steps(
    losses: Losses, w: Tensor, weights: Tensor, keys: PerFedAvgKeys, train: TrainKeys
) -> None:
    """All local steps of Algorithm 1 on w (users, P), in place; stream 0, 1, 2 is D, D', D''.

    `weights` is 1 where weight decay applies.
    """
    alpha, delta = keys.perfedavg_alpha, keys.perfedavg_delta
    sgd, near, g = Momentum(w, weights, train), torch.empty_like(w), torch.empty_like(w)
    for t, n in enumerate(losses.active):
        near[:n] = w[:n]
        losses.gradient(w, t, near, 1.0, -alpha, stream=0)  # wtilde
        if keys.perfedavg_variant == "fo":
            losses.gradient(near, t, sgd.m, train.momentum, stream=1)
        else:
            losses.gradient(near, t, g, stream=1)
            sgd.m[:n].mul_(train.momentum).add_(g[:n])
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
        share = (sizes - t * CHUNK).clamp(max=CHUNK) / sizes
        losses.gradient(w, t, g, 1.0, share)
    w.sub_(g, alpha=alpha)
