"""Async-L2GD at the users: a map, local steps, and in between steps to the cluster's centre.

Lyu et al. 2022, Algorithm 1, lines 11 to 16, for all users of a cohort at once.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corsage.clients.base import Evaluation
from corsage.clients.known_clusters.cohort import CohortClient, Rows
from corsage.core.seeding import generator
from corsage.networks.parts import train_models
from corsage.networks.training import Order, Pull, batches


class AsyncL2GDClient(CohortClient):
    """The users of Async-L2GD; each keeps its theta_i."""

    def step(self, config: dict[str, Any]) -> Rows:
        """theta_i <- rho theta_i + v, then the cluster's walk; the mean goes back."""
        theta = self.models()
        for r, k, first in json.loads(config["walk"]):
            if r:  # line 13, r times: gamma_i is the same for all here
                mean = theta.mean(0)
                theta = mean + (1 - config["pull"]) ** r * (theta - mean)
            theta = self.descend(theta, int(k), float(config["step"]), int(first))
        self.keep("theta", theta.cpu().numpy())
        mean = theta.mean(0, dtype=torch.float64).to(theta.dtype)
        return {"mean": mean.cpu().numpy()}, {"reach": float(theta.norm(dim=1).max())}

    def models(self) -> Tensor:
        """theta_i as they are after the map that the server sent."""
        v = self.tensor(self.rows["v"])
        if "theta" not in self.state:
            return v.expand(len(self.users), -1).clone()
        return float(self.rows["rho"]) * self.tensor(self.state["theta"]) + v

    def descend(self, theta: Tensor, k: int, step: float, first: int) -> Tensor:
        """k local steps, line 15: of the full gradient, or for torch models of SGD."""
        if self.convex:
            losses = self.losses  # found once, not k times: its key has all users in it
            for _ in range(k):
                theta = theta.sub(losses.gradient(theta), alpha=step)
            return theta
        data = self.train_data()
        orders = [self._batches(user, int(n), k, first) for user, n in self._counts(data.sizes)]
        keys = replace(self.settings, lr=step)
        models = train_models(self.network, theta.cpu().numpy(), data, orders, keys)
        return self.tensor(models)

    def adapt(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """A new user minimises its own part of (2.3), f_i + gamma/2 |theta - w_j|^2."""
        gamma, centre = float(config["gamma"]), self.models()
        if self.convex:
            return self.scored(self.losses.prox(centre, gamma, start=centre))
        data, epochs = self.train_data(), int(config["adapt-epochs"])
        start, pull = centre.cpu().numpy(), Pull(gamma, centre[0].cpu().numpy())
        orders = self.orders("model", data, epochs)
        own = train_models(self.network, start, data, orders, self.settings, pull)
        return self.scored(self.tensor(own))

    def _counts(self, sizes: NDArray[np.int64]) -> list[tuple[str, int]]:
        return list(zip(self.users, sizes.tolist(), strict=True))

    def _batches(self, user: str, n: int, k: int, first: int) -> Order:
        """The batches of k steps from iteration `first` on: drawn for the user and it alone."""
        epochs = -(-k // -(-n // self.settings.batch_size))
        rng = generator(self.task.seed, "local steps", first, user)
        return batches(rng, n, epochs, self.settings.batch_size)[:k]
