"""FedALA at the users: weights between two heads are learnt, and the model between is trained."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from corsage.clients.base import Client, Got, Models, Sent
from corsage.clients.parts.samples import orders_of
from corsage.core.arrays import Arrays, Floats32, Ints
from corsage.core.messages.asked import Takes, floats
from corsage.core.seeding import generator
from corsage.networks.batches import Examples, Order
from corsage.networks.gradients import UserLosses, in_groups
from corsage.strategies.fedala import FedALAKeys

VECTORS = 3  # the model, its gradient and, of the head alone, what they are made of


class FedALAClient(Client[FedALAKeys]):
    """The users of FedALA (Zhang et al. 2023); of Theta_i each keeps the head."""

    takes = Takes(shared={"model": floats("P")})
    personal = True

    def train(self, got: Got, data: Examples) -> Sent:
        """W_i by (5), and Theta_i <- E epochs of SGD from Theta'_i."""
        weights = self.learnt(got, data)
        theta, turns = self.sgd(self.between(got, weights), data), self.turns + 1
        kept: Arrays = {"head": theta[:, self.network.head], "weights": weights, "turns": turns}
        return Sent(mean={"model": theta}, keep=kept)

    def models(self, got: Got) -> Models:
        """Theta'_i: Theta's body under a head of one's own."""
        return Models(got.shared["model"][self.network.body], self.head_between(got, self.weights))

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """Theta'_i trained on; of a user that has no Theta_i yet it is Theta."""
        return Models(self.sgd(self.between(got, self.weights), data, epochs=epochs))

    def learnt(self, got: Got, data: Examples) -> Floats32:
        """W_i after epochs of (5), each on the samples of the round's share."""
        orders, eta, head = self.shares(data), self.keys.fedala_eta, self.network.head
        self.count(map(len, orders))
        model, first = got.shared["model"], self.weights
        apart = model[head] - self.own_heads(got)

        def work(losses: UserLosses) -> tuple[Tensor]:
            theta, w, d = (losses.rows(rows) for rows in (model, first, apart))
            common, g = theta[:, head].clone(), torch.empty_like(theta)
            theta[:, head] -= (1 - w) * d
            for t, n in enumerate(losses.active):
                losses.gradient(theta, t, g)
                w[:n] = (w[:n] - eta * d[:n] * g[:n, head]).clamp_(0, 1)
                theta[:n, head] = common[:n] - (1 - w[:n]) * d[:n]
            return (w,)

        return in_groups(self.network, data, [orders], VECTORS, work, self.settings)[0]

    def shares(self, data: Examples) -> list[Order]:
        """The batches of each user's W_i: none where it has no Theta_i yet."""
        sizes = np.maximum((self.keys.fedala_share * data.sizes).astype(np.int64), 1)
        first = self.batches(sizes, self.keys.fedala_start_epochs, 1.0)
        later, found = self.batches(sizes, 1, self.effort), list[Order]()
        for u, (user, turn) in enumerate(zip(self.users, self.turns[:, 0].tolist(), strict=True)):
            rng = generator(self.task.seed, "samples of the weights", self.task.round, user)
            rows = rng.permutation(data.sizes[u])[: sizes[u]]
            found.append([rows[step] for step in ([], first[u], later[u])[min(turn, 2)]])
        return found

    def batches(self, sizes: Ints, epochs: int, effort: float) -> list[Order]:
        """Batches of so many samples; a budget that is shared out is not for the first time's."""
        before = self.effort, self.pace
        self.effort, self.pace = effort, self.keys.fedala_share * self.pace
        orders = orders_of(self, "weights", sizes, epochs, 0)
        self.effort, self.pace = before
        return orders

    def between(self, got: Got, weights: Floats32) -> Floats32:
        """Theta'_i (users, P)."""
        rows = np.repeat(got.shared["model"][None], len(self.users), axis=0)
        rows[:, self.network.head] = self.head_between(got, weights)
        return rows

    def head_between(self, got: Got, weights: Floats32) -> Floats32:
        """Its upper layers (users, P_head), which are Theta's to the bit where W_i is 1."""
        common = got.shared["model"][self.network.head]
        own: Floats32 = self.own_heads(got)
        return (common - (1 - weights) * (common - own)).astype(np.float32)

    def own_heads(self, got: Got) -> Floats32:
        """The heads of Theta_i."""
        return self.remembered("head", got.shared["model"][self.network.head])

    @property
    def weights(self) -> Floats32:
        """W_i."""
        return self.remembered("weights", np.ones_like(self.network.initial[self.network.head]))

    @property
    def turns(self) -> Ints:
        """The rounds that each user has trained in (users, 1)."""
        return self.remembered("turns", np.zeros(1, np.int64))
