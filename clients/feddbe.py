"""FedDBE at the users: a model trained together with a shift of its features that stays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from corsage.clients.base import Client, Got, Models, Sent
from corsage.clients.parts.combined import Combined, Rule
from corsage.core.arrays import Floats32
from corsage.core.messages.asked import Takes, floats
from corsage.networks.batches import Examples, Mean
from corsage.networks.criterion import output_of
from corsage.strategies.feddbe import FedDBEKeys


class Shifted(Rule):
    """A model whose features are shifted on their way into the head."""

    bias: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """h(f(x) + z_i)."""
        if self._halves[0]:
            front, back = self._halves[0]
            return output_of(back(shifted(front(x), self.bias)))

        def before(_: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
            return shifted(given[0], self.bias), *given[1:]

        with self.models[0].get_submodule(self._head).register_forward_pre_hook(before):
            return self.outputs(0, x)


def shifted(features: Tensor, bias: Tensor) -> Tensor:
    """f(x) + z_i, whatever the shape of features is."""
    return features + bias.view(features.shape[1:])


class FedDBEClient(Client[FedDBEKeys]):
    """The users of FedDBE (Zhang et al. 2023); each keeps its z_i."""

    takes = Takes(shared={"model": floats("P"), "consensus": floats("F")})
    personal = True

    def train(self, got: Got, data: Examples) -> Sent:
        """(f, h, z_i) <- E epochs of SGD; without a consensus z_i is not there, and m_i is sent."""
        w, consensus = got.shared["model"], got.shared.get("consensus")
        orders, usual = self.orders("model", data), self.network.criterion.mean
        steps = [
            Steps(self, data.mean_of(u, usual), bias, consensus, len(orders[u]))
            for u, bias in enumerate(self.bias)
        ]
        into = None if consensus is None else [one.into_head for one in steps]
        own = replace(data, losses=[one.loss for one in steps], into_head=into, objective=None)
        trained = self.sgd(w, own, orders=orders)
        biases = np.stack([one.moved().cpu().numpy() for one in steps])
        first = {} if consensus is not None else {"mean": self.means(w, steps, data)}
        return Sent(mean={"model": trained, **first}, keep={"bias": biases})

    def means(self, w: Floats32, steps: Sequence[Steps], data: Examples) -> Floats32:
        """m_i; of who took no step, as its share of the work is less, that of f(x) under w."""
        found = [one.mean for one in steps]
        if not all(one.taken for one in steps):
            features = self.features(np.broadcast_to(w, (len(steps), len(w))), data)
            each = torch.split(features, data.sizes.tolist())
            found = [
                one.mean if one.taken else own.mean(0) for one, own in zip(steps, each, strict=True)
            ]
        return np.stack([mean.cpu().numpy() for mean in found])

    def models(self, got: Got) -> Models:
        """The common model with z_i between its body and its head."""
        return Combined(got.shared["model"][None], rule=Shifted, own={"bias": self.bias})

    @property
    def bias(self) -> Floats32:
        """z_i."""
        return self.remembered("bias", np.zeros(self.network.width, np.float32))


class Steps:
    """One user's loss in a round, with z_i and m_i, which it moves from step to step.

    Parameters
    ----------
    client : of whom the keys and the network are.
    usual : the mean loss of a batch (outputs, labels).
    start, consensus : z_i at first, and m if there is one.
    count : how many steps there are. After them they begin anew: users who were trained together
        are trained again, one by one, if one of them diverged.
    """

    def __init__(
        self,
        client: FedDBEClient,
        usual: Mean,
        start: Floats32,
        consensus: Floats32 | None,
        count: int,
    ) -> None:
        self.keys, self.usual, self.count, self.taken = client.keys, usual, count, 0
        self.rate, device = client.keys.feddbe_shift * client.settings.lr, client.network.device
        self.start = torch.tensor(start, device=device)
        self.bias, self.mean = self.start.clone(), torch.zeros_like(self.start)
        self.consensus = None if consensus is None else torch.tensor(consensus, device=device)

    def into_head(self, features: Tensor) -> Tensor:
        """f(x) + z_i, after the step of z_i that the last batch asks for."""
        self.bias = self.moved() if self.taken % self.count else self.start.clone()
        return shifted(features, self.bias.requires_grad_())

    def loss(self, features: Tensor, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of h(f(x) + z_i), and what m_i is off by."""
        mu, kappa = self.keys.feddbe_mu, self.keys.feddbe_kappa
        before = self.mean if self.taken % self.count else torch.zeros_like(self.mean)
        mean = (1 - mu) * before + mu * features.flatten(1).mean(0)
        self.mean, self.taken = mean.detach(), self.taken + 1
        if self.consensus is None:
            return self.usual(outputs, y)
        return self.usual(outputs, y) + kappa / 2 * (mean - self.consensus).square().mean()

    def moved(self) -> Tensor:
        """z_i - eta dL/dz_i; z_i, where no batch has come to the head with it."""
        slope = self.bias.grad
        return self.bias.detach() - (0.0 if slope is None else self.rate * slope)
