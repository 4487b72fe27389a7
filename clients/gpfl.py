"""GPFL at the users: body, head, points and valve learn at once; the valve is in what predicts."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from corsage.clients.base import Client, Got, Models, Sent
from corsage.clients.parts.combined import Combined, Rule
from corsage.core.arrays import Arrays, Floats32
from corsage.core.messages.asked import Takes, floats
from corsage.networks.batches import Examples, Loss, Order
from corsage.networks.rules import rule_of
from corsage.networks.training import StepLoss, sgd
from corsage.strategies.gpfl import GPFLKeys

GUIDE = ("points", "weights", "vectors")


class Valve(Rule):
    """A model whose features pass the valve before they go into the head."""

    scale: Tensor
    shift: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """h_i(ReLU(scale * f(x) + shift))."""
        return self.both(0, x, lambda features: passed(features, self.scale, self.shift))[1]


def passed(features: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """The features behind the valve."""
    return torch.relu(features.flatten(1) * scale + shift).view_as(features)


def valve(weights: Tensor, vectors: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
    """gamma(c) + 1 and beta(c), of a vector or of several, one a row."""
    bias, scale, shift = vectors[:, 0], vectors[:, 1], vectors[:, 2]
    h = torch.relu(torch.einsum("nij,...j->...ni", weights, context) + bias)
    gamma, beta = (F.layer_norm(h, h.shape[-1:]) * scale + shift).unbind(-2)
    return gamma + 1, beta


class GPFLClient(Client[GPFLKeys]):
    """The users of GPFL (Zhang et al. 2023); h_i begins at the initial head."""

    takes = Takes(
        shared={
            "body": floats("B"),
            "points": floats("C", "F"),
            "weights": floats(2, "F", "F"),
            "vectors": floats(2, 3, "F"),
        }
    )
    personal = True

    def train(self, got: Got, data: Examples) -> Sent:
        """(f_i, h_i, v, valve) <- E epochs of SGD on all three losses at once."""
        orders = self.orders("model", data)
        self.count(map(len, orders))
        own = zip(self.wholes(got), self.contexts(self.points(got), data), orders, strict=True)
        each = [self.trained(u, got, data.on("model"), *one) for u, one in enumerate(own)]
        mean = {name: np.stack([one[name] for one in each]) for name in ("body", *GUIDE)}
        return Sent(mean=mean, keep={"head": np.stack([one["head"] for one in each])})

    def trained(
        self, u: int, got: Got, data: Examples, start: Floats32, p_i: Tensor, order: Order
    ) -> Arrays:
        """One user's share of the round: what it sends, and its head."""
        network, keys = self.network, self.settings
        network.set(network.whole, start)
        flat = np.concatenate([got.shared[name].ravel() for name in GUIDE], dtype=np.float32)
        own = torch.tensor(flat, device=network.device, requires_grad=True)
        decayed = replace(keys, weight_decay=self.keys.gpfl_mu)
        rule = rule_of(own.detach()[None], torch.ones_like(own), decayed)

        def step(grad: Tensor, theta: Tensor) -> None:
            """Points and valve take theirs with the model's."""
            assert own.grad is not None
            rule.step(own.grad[None])
            own.grad = None

        what = StepLoss(loss=self.guided(got, own, p_i), change=data.change_of(u, order))
        sgd(network, data.user(u), order, network.whole, keys, step, what)
        model = np.array(network.vector.view(network.whole))
        ends = np.cumsum([got.shared[name].size for name in GUIDE])[:-1]
        parts = np.split(own.detach().cpu().numpy(), ends)
        guide = {n: part.reshape(got.shared[n].shape) for n, part in zip(GUIDE, parts, strict=True)}
        return {"body": model[network.body], "head": model[network.head], **guide}

    def guided(self, got: Got, own: Tensor, p_i: Tensor) -> Loss:
        """A user's loss of a batch; `own` are points and valve as they are at that step."""
        network, shapes = self.network, [got.shared[name].shape for name in GUIDE]
        came = self.points(got)
        context = torch.stack([p_i, came.mean(0)])

        def loss(features: Tensor, outputs: Tensor, y: Tensor) -> Tensor:
            parts = torch.split(own, [prod(shape) for shape in shapes])
            v, weights, vectors = (p.view(shape) for p, shape in zip(parts, shapes, strict=True))
            scale, shift = valve(weights, vectors, context)
            personal = network.logits(passed(features, scale[0], shift[0]))
            common = passed(features.flatten(1), scale[1], shift[1])
            angles = F.normalize(common) @ F.normalize(v).T
            away = torch.linalg.vector_norm(common - came[y], dim=1).mean()
            guidance: Tensor = F.cross_entropy(angles, y) + self.keys.gpfl_lambda * away
            return network.criterion.mean(personal, y) + guidance

        return loss

    def models(self, got: Got) -> Models:
        """f under h_i, and the valve at p_i."""
        data = self.train_data(got)
        weights, vectors = (torch.tensor(got.shared[n]) for n in GUIDE[1:])
        pairs = [
            valve(weights, vectors, p_i) for p_i in self.contexts(self.points(got).cpu(), data)
        ]
        scale, shift = (
            np.stack([one.numpy() for one in each]) for each in zip(*pairs, strict=True)
        )
        own = {"scale": scale, "shift": shift}
        return Combined(self.wholes(got)[:, None], rule=Valve, own=own)

    def points(self, got: Got) -> Tensor:
        """v as they came."""
        return torch.tensor(got.shared["points"], device=self.network.device)

    def contexts(self, points: Tensor, data: Examples) -> Tensor:
        """p_i (users, F)."""
        found = []
        for y in torch.split(data.y, data.sizes.tolist()):  # one by one: no sum is another's
            counts = torch.bincount(y, minlength=len(points)).to(points)
            found.append(counts / counts.sum().clamp(min=1) @ points)
        return torch.stack(found)

    def wholes(self, got: Got) -> Floats32:
        """Whole models (users, P)."""
        heads = self.remembered("head", self.network.initial[self.network.head])
        body = got.shared["body"]
        return np.concatenate([np.broadcast_to(body, (len(heads), len(body))), heads], 1)
