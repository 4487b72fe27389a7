"""FedPAC at the users: what features come to, the head, then the body near the classes' means."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from corsage.clients.base import Got, Models, Sent
from corsage.clients.fedproto import PrototypesClient
from corsage.core.arrays import Arrays, Floats32
from corsage.core.messages.asked import Takes, floats
from corsage.networks.batches import Examples
from corsage.strategies.fedpac import FedPACKeys


class FedPACClient(PrototypesClient[FedPACKeys]):
    """The users of FedPAC (Xu et al. 2023, Algorithm 1), whose heads are at the server."""

    takes = Takes(
        shared={"body": floats("B"), "prototypes": floats("C", "F"), "known": floats("C")},
        rows={"head": floats("H")},
    )
    personal = False

    @property
    def strength(self) -> float:
        """lambda."""
        return self.keys.fedpac_lambda

    def train(self, got: Got, data: Examples) -> Sent:
        """h_i and V_i at theta^t; phi_i <- epochs of SGD, then theta_i <- E epochs at phi_i."""
        theta = got.shared["body"]
        first = self.statistics(self.features(joined(theta, got.rows["head"]), data), data)
        phi = self.adapt(got, data, self.keys.fedpac_head_epochs).heads
        assert phi is not None
        theta_i = self.sgd_bodies(theta, phi, data)
        then = self.told(self.features(joined(theta_i, phi), data), data)
        return Sent(mean={"body": theta_i}, rows={"head": phi, **first, **then})

    def models(self, got: Got) -> Models:
        """The new body under the head that the server has for each user."""
        return Models(got.shared["body"], got.rows["head"])

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """A new user trains a head and nothing else; features are frozen, so on its plain loss."""
        body, plain = got.shared["body"], replace(data, losses=None)
        return Models(body, self.sgd_heads(body, got.rows["head"], plain, epochs))

    def statistics(self, features: torch.Tensor, data: Examples) -> Arrays:
        """h_i (users, classes, features) and the root of V_i (users,)."""
        f = features.double()
        means, counts = self.prototypes(f, data)
        n = counts.sum(1)
        h = means * (counts / n[:, None])[..., None]
        squares = torch.split(f.cpu().square().sum(1), data.sizes.tolist())
        mean = torch.stack([own.mean() for own in squares])
        v = ((mean - h.square().sum((1, 2))) / n).clamp(min=0)  # of one sample rounding is left
        return {
            "means": h.numpy().astype(np.float32),
            "deviation": v.sqrt().numpy().astype(np.float32),
        }


def joined(bodies: Floats32, heads: Floats32) -> Floats32:
    """Whole models (users, P), of one body or of each user's own."""
    return np.concatenate([np.broadcast_to(bodies, (len(heads), bodies.shape[-1])), heads], 1)
