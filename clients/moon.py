"""MOON at the users: FedAvg's training, with features held against those of two other models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus

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
        to_glob, to_prev = (
            normalize(self.features(rows, data))
            for rows in (np.broadcast_to(w, before.shape), before)
        )
        away, losses = (to_prev - to_glob) / self.keys.moon_tau, []
        for u, n in enumerate(data.sizes.tolist()):
            mine = slice(int(data.offsets[u]), int(data.offsets[u]) + n)
            usual = data.mean_of(u, self.network.criterion.mean)
            losses.append(self.contrast(usual, data.y[mine], away[mine]))
        numbers = torch.cat([torch.arange(n) for n in data.sizes.tolist()]).to(data.y.device)
        return replace(data, y=numbers, losses=losses, objective=None)

    def contrast(self, usual: Mean, y: Tensor, away: Tensor) -> Loss:
        """One user's loss of a batch, whose samples come by their numbers.

        `away` are the directions from z_glob to z_prev, by tau: (3) is log(1 + e^(z away / |z|)).
        """
        mu = self.keys.moon_mu

        def loss(features: Tensor, outputs: Tensor, numbers: Tensor) -> Tensor:
            z = normalize(features.flatten(1))
            apart = softplus((z * away[numbers]).sum(1)).mean()
            return usual(outputs, y[numbers]) + mu * apart

        return loss
