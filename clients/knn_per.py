"""kNN-Per at the users: FedAvg's training, and a memory of features beside the global model."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from corsage.clients.base import Client, Got, Models, Sent
from corsage.clients.parts.combined import Combined, Rule, logits, probabilities
from corsage.core.arrays import Floats, Floats32
from corsage.core.messages.asked import Takes, floats
from corsage.networks.batches import Examples
from corsage.networks.network import Network
from corsage.strategies.knn_per import CHOSEN_LAMBDA, KNNPerKeys

LAMBDAS = np.linspace(0.0, 1.0, 11)


class Neighbours(Rule):
    """The global model h, and the samples (phi, y) that a user remembers of its own."""

    phi: Tensor
    y: Tensor
    weight: Tensor

    def __init__(self, network: Network, count: int, k: int, sigma: float) -> None:
        super().__init__(network, count)
        self.k, self.sigma = k, sigma

    def forward(self, x: Tensor) -> Tensor:
        """The logits of lambda_m h_m(x) + (1 - lambda_m) h(x); h's own where lambda_m = 0."""
        phi, outputs = self.both(0, x)
        p = probabilities(outputs)
        vote = votes(squared_distances(phi, self.phi), self.y, p.shape[1], self.k, self.sigma)
        both = logits(self.weight * vote + (1 - self.weight) * p, outputs.shape[1])
        return torch.where(self.weight > 0, both, outputs)


def squared_distances(phi: Tensor, others: Tensor) -> Tensor:
    """mean_f (phi_f - phi'_f)^2 of each sample and each that is remembered."""
    apart = torch.cdist(phi, others, compute_mode="donot_use_mm_for_euclid_dist")
    return apart.square() / max(phi.shape[1], 1)


def votes(d: Tensor, y: Tensor, classes: int, k: int, sigma: float) -> Tensor:
    """h_m: each class's share of the weights exp(-d / sigma) of the k nearest."""
    near, which = d.topk(min(k, d.shape[1]), dim=1, largest=False)
    weights = torch.softmax(-near / sigma, 1)
    return (weights[..., None] * one_hot(y[which], classes).to(weights)).sum(1)


class KNNPerClient(Client[KNNPerKeys]):
    """The users of kNN-Per; they keep nothing: the memory is of the model that came."""

    takes = Takes(shared={"model": floats("P")})
    own_training = True

    def train(self, got: Got, data: Examples) -> Sent:
        """h_m <- E epochs of SGD from h."""
        return Sent(mean={"model": self.sgd(got.shared["model"], data)})

    def models(self, got: Got) -> Models:
        """h, and each user's training samples."""
        return self.remembering(got, self.train_data(got))

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """A new user remembers its samples, and trains nothing."""
        return self.remembering(got, data)

    def remembering(self, got: Got, data: Examples) -> Models:
        """h, and the features and labels of the users' samples under it."""
        h, keys = got.shared["model"], self.keys
        phi = self.features(np.broadcast_to(h, (len(self.users), len(h))), data)
        chosen = keys.knn_per_lambda == CHOSEN_LAMBDA
        weight = self.chosen(h, phi, data) if chosen else np.full(len(data), keys.knn_per_lambda)
        return Combined(
            h[None],
            rule=Neighbours,
            own={"weight": weight.astype(np.float32)},
            samples={"phi": phi.cpu().numpy(), "y": data.y.long().cpu().numpy()},
            sizes=data.sizes,
            settings={"k": keys.knn_per_k, "sigma": keys.knn_per_sigma},
        )

    def chosen(self, h: Floats32, phi: Tensor, data: Examples) -> Floats:
        """lambda_m: the first of the grid at which most of a user's samples are right.

        On each of them the user's other samples vote.
        """
        every = Models(h).outputs(self.network, data, alone=True)
        grid = torch.from_numpy(LAMBDAS).to(every)[:, None, None]
        found = np.zeros(len(data))
        for u in np.flatnonzero(data.sizes > 1).tolist():
            mine = slice(int(data.offsets[u]), int(data.offsets[u] + data.sizes[u]))
            y, p = data.y[mine].long(), probabilities(every[mine])
            d = squared_distances(phi[mine], phi[mine]).fill_diagonal_(torch.inf)
            vote = votes(d, y, p.shape[1], self.keys.knn_per_k, self.keys.knn_per_sigma)
            right = (grid * vote + (1 - grid) * p).argmax(2) == y
            found[u] = LAMBDAS[int(right.sum(1).argmax())]
        return found
