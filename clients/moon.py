"""MOON at the users: FedAvg's training, with features held against those of two other models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, softplus

from corsage.clients.base import Got, Sent
from corsage.clients.fedavg import FedAvgClient
from corsage.core.arrays import Floats32
from corsage.networks.batches import Examples, Loss, Mean
from corsage.strategies.moon import MOONKeys


class MOONClient(FedAvgClient[MOONKeys]):
    """The users of MOON (Li et al. 2021, Algorithm 1); each keeps the model that it sent last."""

    personal = True
    own_training = False

    def train(self, got: Got, data: Examples) -> Sent:
        """w_k <- E epochs of SGD from w_t on the loss and mu times the contrast."""
        w = got.shared["model"]
        w_k = self.sgd(w, self.contrasted(w, data))
        return Sent(mean={"model": w_k}, keep={"model": w_k})

    def contrasted(self, w: Floats32, data: Examples) -> Examples:
        """The samples under losses that know each one's z_glob and z_prev, by its number.

        The numbers stand in the place of labels, which are all that a loss has of a sample.
        """
        before = self.remembered("model", w)
        facing = [self.features(rows, data) for rows in (np.broadcast_to(w, before.shape), before)]
        usual, losses = self.network.criterion.mean, []
        for u, n in enumerate(data.sizes.tolist()):
            mine = slice(int(data.offsets[u]), int(data.offsets[u]) + n)
            z_glob, z_prev = (z[mine] for z in facing)
            losses.append(self.contrast(data.mean_of(u, usual), data.y[mine], z_glob, z_prev))
        numbers = torch.cat([torch.arange(n) for n in data.sizes.tolist()]).to(data.y.device)
        return replace(data, y=numbers, losses=losses, objective=None)

    def contrast(self, usual: Mean, y: Tensor, z_glob: Tensor, z_prev: Tensor) -> Loss:
        """One user's loss of a batch, whose samples come by their numbers."""
        mu, tau = self.keys.moon_mu, self.keys.moon_tau

        def loss(features: Tensor, outputs: Tensor, numbers: Tensor) -> Tensor:
            z = features.flatten(1)
            to_glob, to_prev = (
                cosine_similarity(z, other[numbers], dim=1) for other in (z_glob, z_prev)
            )
            return usual(outputs, y[numbers]) + mu * softplus((to_prev - to_glob) / tau).mean()

        return loss
