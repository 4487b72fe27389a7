"""FedEM at the users: each sample's share in every model, SGD by these shares, a mixture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from corsage.clients.base import Client, Got, Models, Sent
from corsage.clients.parts.combined import Combined
from corsage.core.arrays import Floats32
from corsage.core.messages.asked import Takes, floats
from corsage.networks.batches import Examples, Mean
from corsage.networks.criterion import Criterion
from corsage.networks.training_objective import Objective
from corsage.strategies.fedem import MIXED_AS, FedEMKeys


@dataclass(frozen=True, kw_only=True)
class Weighed(Objective):
    """The mean over a batch of q_i l_i; in the place of labels come the numbers of the samples.

    Parameters
    ----------
    q, labels : of all users' samples, one user after the other.
    criterion : l.
    """

    q: Tensor
    labels: Tensor
    criterion: Criterion

    def pick(self, users: Sequence[int]) -> Objective:
        """Samples are known by their numbers, whosever they are."""
        return self

    def mean_of(self, user: int) -> Mean:
        """Of a batch's (outputs, numbers)."""
        return lambda z, i: (self.q[i] * self.criterion.each(z, self.labels[i])).mean()

    def slope(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Each sample's own gradient in its outputs."""
        return self.criterion.slope(outputs, self.labels[y])

    def share(self, y: Tensor, share: float | Tensor) -> Tensor:
        """The share of a sample in its batch, times q_i."""
        return self.q[y] * share


class FedEMClient(Client[FedEMKeys]):
    """The users of FedEM (Marfoq et al. 2021, Algorithm 1); pi_t begins at 1/K."""

    takes = Takes(shared={"models": floats("K", "P")})
    personal = True

    def train(self, got: Got, data: Examples) -> Sent:
        """q and pi_t by theta^(k-1), then theta_tk <- E epochs of SGD on the samples' shares."""
        theta = got.shared["models"]
        q = self.shares(self.losses(theta, data), self.weights(theta), data)
        rows = torch.arange(len(data.y), device=data.y.device)
        trained = []
        for model, own in zip(theta, q.unbind(1), strict=True):
            aim = Weighed(q=own, labels=data.y, criterion=self.network.criterion)
            trained.append(self.sgd(model, replace(data, y=rows, objective=aim)))
        models = np.stack(trained, 1)
        return Sent(mean={"models": models}, keep={"weights": self.means(q, data)})

    def models(self, got: Got) -> Models:
        """sum_k pi_tk h_theta_k."""
        return self.mixed(got, self.weights(got.shared["models"]))

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """A new user finds its weights by so many E and M steps, and trains no model."""
        theta = got.shared["models"]
        pi, losses = self.weights(theta), self.losses(theta, data)
        for _ in range(epochs):
            pi = self.means(self.shares(losses, pi, data), data)
        return self.mixed(got, pi)

    def mixed(self, got: Got, pi: Floats32) -> Models:
        """The components, and each user's weights."""
        of = MIXED_AS[self.network.criterion.name]
        return Combined(got.shared["models"], own={"weights": pi}, settings={"of": of})

    def weights(self, theta: Floats32) -> Floats32:
        """pi_t of so many components, one row a user."""
        return self.remembered("weights", np.full(len(theta), 1 / len(theta), np.float32))

    def losses(self, theta: Floats32, data: Examples) -> Tensor:
        """l of each sample under each model (samples, K); one that is no number is the largest."""
        each = [Models(model).outputs(self.network, data, alone=False) for model in theta]
        found = [self.network.criterion.each(outputs, data.y) for outputs in each]
        return torch.stack(found, 1).nan_to_num(nan=torch.finfo(found[0].dtype).max)

    def shares(self, losses: Tensor, pi: Floats32, data: Examples) -> Tensor:
        """q(z_i = k) of each sample (samples, K)."""
        sizes = torch.from_numpy(data.sizes)
        own = torch.from_numpy(pi).repeat_interleave(sizes, 0).to(losses)
        return torch.softmax(own.log() - losses, 1)

    def means(self, q: Tensor, data: Examples) -> Floats32:
        """pi_tk, the means of q over each user's samples."""
        each = torch.split(q, data.sizes.tolist())
        return torch.stack([own.mean(0) for own in each]).cpu().numpy()
