"""FedProto at the users: a whole model each, its features near to the prototypes of all."""

from __future__ import annotations

import torch
from torch import Tensor

from corsage.clients.base import Got, K, Sent
from corsage.clients.local import LocalClient
from corsage.core.arrays import Arrays
from corsage.core.messages.asked import Takes, floats
from corsage.networks.batches import Examples, Loss
from corsage.strategies.fedproto import FedProtoKeys


class PrototypesClient(LocalClient[K]):
    """Users whose features of a class are drawn to one point."""

    takes = Takes(shared={"prototypes": floats("C", "F"), "known": floats("C")})
    own_training = False

    @property
    def strength(self) -> float:
        """lambda."""
        raise NotImplementedError

    def loss(self, got: Got, user: str, labels: Tensor) -> Loss:
        """L_S + lambda mean (f_i(x) - C^(y))^2; of a class without a prototype L_S alone."""
        prototypes, known = (
            torch.tensor(got.shared[name], device=self.network.device)
            for name in ("prototypes", "known")
        )
        usual, strength = self.network.criterion.mean, self.strength

        def loss(features: Tensor, outputs: Tensor, y: Tensor) -> Tensor:
            apart = (features.flatten(1) - prototypes[y]).square().mean(1)
            return usual(outputs, y) + strength * (known[y] * apart).mean()

        return loss

    def told(self, features: Tensor, data: Examples) -> Arrays:
        """C_i^(j) times its weight, and the weights: what a user says of features."""
        prototypes, counts = self.prototypes(features, data)
        weights = (counts > 0).float()
        if self.settings.weighting == "examples":  # a mean by samples times these is by |D_ij|
            weights = counts / counts.sum(1, keepdim=True)
        weighted = weights[..., None] * prototypes
        return {"weighted": weighted.numpy(), "weights": weights.numpy()}

    def prototypes(self, features: Tensor, data: Examples) -> tuple[Tensor, Tensor]:
        """C_i^(j) (users, classes, features) and |D_ij| (users, classes)."""
        users, classes = len(data), self.task.num_classes
        which = torch.repeat_interleave(torch.arange(users), torch.from_numpy(data.sizes))
        which = which * classes + data.y.cpu()
        counts = torch.bincount(which, minlength=users * classes).view(users, classes)
        sums = features.new_zeros(users * classes, features.shape[1], device="cpu")
        sums.index_add_(0, which, features.cpu())
        return sums.view(users, classes, -1) / counts.clamp(min=1)[..., None], counts


class FedProtoClient(PrototypesClient[FedProtoKeys]):
    """The users of FedProto (Tan et al. 2022, Algorithm 1, LocalUpdate)."""

    @property
    def strength(self) -> float:
        """lambda."""
        return self.keys.fedproto_lambda

    def train(self, got: Got, data: Examples) -> Sent:
        """w_i <- E epochs of SGD, and C_i^(j) of the features that it then has."""
        w_i = self.sgd(self.models(got).whole, data)
        return Sent(rows=self.told(self.features(w_i, data), data), keep={"model": w_i})
