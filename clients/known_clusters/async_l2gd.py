"""Async-L2GD at the users: a map, local steps, and in between steps to the cluster's centre.

Lyu et al. 2022, Algorithm 1, lines 11 to 16, for all users of a cohort at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from corsage.clients.base import Got, Models, Sent
from corsage.clients.convex import Answer
from corsage.clients.known_clusters.cohort import CohortClient, Walk
from corsage.core.arrays import Arrays
from corsage.core.messages.asked import Takes, floats
from corsage.core.messages.fields import Real, Text
from corsage.core.seeding import generator
from corsage.networks.batches import Examples, Order
from corsage.networks.proximal import Pull
from corsage.networks.training import batches, steps_of
from corsage.strategies.known_clusters.async_l2gd import AsyncL2GDKeys


class AsyncL2GDClient(CohortClient[AsyncL2GDKeys]):
    """The users of Async-L2GD; each keeps its theta_i."""

    takes = Takes(
        rows={"factor": floats(), "shift": floats("P")},
        options={
            "ask": Text(40),
            "gamma": Real(),
            "walk": Walk(),
            "step": Real(),
            "pull": Real(),
        },
    )

    def answers(self) -> Mapping[str, Answer]:
        """Steps of the algorithm, and facts about the losses."""
        return {"step": self.step, "facts": self.facts}

    def step(self, got: Got) -> Sent:
        """theta_i <- factor theta_i + shift, then the cluster's walk; the mean goes back."""
        theta, pull = self.theta(got.rows), got.options["pull"]
        for r, k, first in got.options["walk"]:
            if r:  # line 13, r times: gamma_i is the same for all here
                mean = theta.mean(0)
                theta = mean + (1 - pull) ** r * (theta - mean)
            theta = self.descend(theta, int(k), float(got.options["step"]), int(first))
        mean = theta.mean(0, dtype=torch.float64).to(theta.dtype)
        return Sent(
            rows={"mean": mean.cpu().numpy()},
            keep={"theta": theta.cpu().numpy()},
            metrics={"reach": theta.norm(dim=1).max().cpu().numpy()},
        )

    def models(self, got: Got) -> Models:
        """theta_i."""
        return Models(self.theta(got.rows).cpu().numpy())

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """A new user minimises its own part of (2.3), f_i + gamma/2 |theta - w_j|^2."""
        gamma, centre = got.options["gamma"], self.theta(got.rows)
        if self.convex:
            return self.own_part(centre, gamma)
        start = centre.cpu().numpy()
        return Models(self.sgd(start, data, epochs=epochs, pull=Pull(gamma, start[0])))

    def theta(self, rows: Arrays) -> Tensor:
        """theta_i as they are after the map that the server sent."""
        shift = self.tensor(rows["shift"])
        if "theta" not in self.state:
            return shift.expand(len(self.users), -1).clone()
        return float(rows["factor"]) * self.tensor(self.state["theta"]) + shift

    def descend(self, theta: Tensor, k: int, step: float, first: int) -> Tensor:
        """k local steps, line 15: of the full gradient, or for torch models of SGD."""
        if self.convex:
            self.count(k)
            return self.losses.descend(theta, k, step)
        data = self.train_data(Got())
        orders = [
            self.batches(user, int(n), k, first)
            for user, n in zip(self.users, data.sizes, strict=True)
        ]
        settings = replace(self.settings, lr=step)
        start, stretch = theta.cpu().numpy(), f"local steps {first}"
        return self.tensor(self.sgd(start, data, settings=settings, orders=orders, purpose=stretch))

    def batches(self, user: str, n: int, k: int, first: int) -> Order:
        """The batches of k steps from iteration `first` on: drawn for the user and it alone."""
        size, join = self.settings.batch_size, self.network.batch_statistics
        epochs = -(-k // steps_of(n, size, join))
        rng = generator(self.task.seed, "local steps", first, user)
        return batches(rng, n, epochs, size, join)[:k]
