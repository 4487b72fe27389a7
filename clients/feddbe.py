"""FedDBE at the users: a model trained together with a shift of its features that stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from corsage.clients.base import Client, Got, Models, Sent
from corsage.clients.parts.combined import Combined, Rule
from corsage.core.arrays import Floats32
from corsage.core.messages.asked import Takes, floats
from corsage.networks import local_training
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
        network, usual = self.network, self.network.criterion.mean
        orders, trained = self.orders("model", data), np.repeat(w[None], len(data), axis=0)
        self.count(map(len, orders))
        steps = [
            Steps(self, data.mean_of(u, usual), bias, consensus) for u, bias in enumerate(self.bias)
        ]
        own = replace(data, losses=[one.loss for one in steps], objective=None)
        job = local_training.Job(network, network.whole, own, orders, self.settings, None)
        for u in range(len(data)):  # one after the other: a step of z_i follows each of the model
            network.set(network.whole, w)
            local_training.train_alone(job, u)
            trained[u] = network.vector.view(network.whole)
        biases = np.stack([one.done() for one in steps])
        means = np.stack([one.mean.cpu().numpy() for one in steps])
        first = {} if consensus is not None else {"mean": means}
        return Sent(mean={"model": trained, **first}, keep={"bias": biases})

    def models(self, got: Got) -> Models:
        """The common model with z_i between its body and its head."""
        return Combined(got.shared["model"][None], rule=Shifted, own={"bias": self.bias})

    @property
    def bias(self) -> Floats32:
        """z_i."""
        return self.remembered("bias", np.zeros(self.network.width, np.float32))


class Steps:
    """One user's loss in a round, which knows z_i and m_i, and moves both from step to step.

    Parameters
    ----------
    client : of whom the keys and the network are.
    usual : the mean loss of a batch (outputs, labels).
    bias, consensus : z_i, and m if there is one.
    """

    def __init__(
        self,
        client: FedDBEClient,
        usual: Mean,
        bias: Floats32,
        consensus: Floats32 | None,
    ) -> None:
        self.keys, self.usual, self.network = client.keys, usual, client.network
        self.rate, device = client.keys.feddbe_shift * client.settings.lr, client.network.device
        self.bias = torch.tensor(bias, device=device, requires_grad=True)
        self.consensus = None if consensus is None else torch.tensor(consensus, device=device)
        self.mean = torch.zeros_like(self.bias, requires_grad=False)

    def loss(self, features: Tensor, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of h(f(x) + z_i), and what m_i is off by; z_i takes the last batch's step."""
        self.step()
        mu, kappa = self.keys.feddbe_mu, self.keys.feddbe_kappa
        mean = (1 - mu) * self.mean + mu * features.flatten(1).mean(0)
        self.mean = mean.detach()
        if self.consensus is None:
            return self.usual(outputs, y)
        own = self.usual(self.network.logits(shifted(features, self.bias)), y)
        return own + kappa / 2 * (mean - self.consensus).square().mean()

    @torch.no_grad()
    def step(self) -> None:
        """z_i <- z_i - eta dL/dz_i, if there is one."""
        if self.bias.grad is not None:
            self.bias -= self.rate * self.bias.grad
            self.bias.grad = None

    def done(self) -> Floats32:
        """z_i after the last step."""
        self.step()
        found: Floats32 = self.bias.detach().cpu().numpy()
        return found
