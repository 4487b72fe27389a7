"""FedRep at the users: tau epochs of the head, then the body, then the body goes back.

Collins et al. 2021, Algorithm 1, lines of the client. The head is user i's own and never sent; a
user that was never drawn keeps its initial head.

If the server draws heads together (strategies/fedrep/convex_heads.py), it says where each head begins and
what it is pulled to, and the head goes back beside the body.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from corsage.clients.base import Client, Evaluation, Fit
from corsage.networks.parts import train_bodies, train_head_group
from corsage.networks.training import Examples, Pull, evaluate
from corsage.strategies.fedrep.fedrep import FedRepKeys


class FedRepClient(Client):
    """The users of FedRep."""

    personal = True

    def fit(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """h_i <- tau epochs of SGD at (h_i, phi^t), then phi_i <- SGD at (h_i, phi)."""
        assert isinstance(self.task.keys, FedRepKeys)
        (body,) = parameters
        data = self.train_data()
        heads = self._heads(body, data, self.task.keys.head_epochs)
        orders = self.orders("body", data, self.settings.local_epochs)
        bodies = train_bodies(self.network, body, heads, data, orders, self.settings)
        examples, metrics = int(data.sizes.sum()), {"num-examples": data.sizes}
        if "head" in self.rows:
            self.returns, self.singly = ("body", "head"), ("head",)
            return [bodies, heads], examples, metrics
        self.keep("head", heads)
        return [bodies], examples, metrics

    def evaluate(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """The new body under each user's own head."""
        (body,) = parameters
        return self.scored_heads(body, self._present())

    def adapt(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """A new user learns a head and nothing else (the paper's section 5.2)."""
        body, *clusters = parameters
        data = self.train_data()
        if clusters:
            best = self._best(body, clusters[0], data)
            self.rows |= {"head": best, "centre": best}
        return self.scored_heads(body, self._heads(body, data, config["adapt-epochs"]))

    def _present(self) -> NDArray[Any]:
        """h_i as it is now: what the server says, or what the user kept."""
        if "head" in self.rows:
            return self.rows["head"]
        return self.remembered("head", self.network.initial[self.network.head])

    def _heads(self, body: NDArray[Any], data: Examples, epochs: int) -> NDArray[Any]:
        """h_i after some epochs of SGD with the body frozen, pulled if the server says so."""
        rows, orders = self.rows, self.orders("head", data, epochs)
        pull = Pull(rows["strength"], rows["centre"]) if "centre" in rows else None
        start = self._present()
        return train_head_group(self.network, body, start, data, orders, self.settings, pull)

    def _best(self, body: NDArray[Any], heads: NDArray[Any], data: Examples) -> NDArray[Any]:
        """The cluster's head with the least loss on each user's training data."""
        users = len(self.users)
        losses = [evaluate(self.network, body, np.tile(h, (users, 1)), data).loss for h in heads]
        return np.asarray(heads[np.argmin(losses, axis=0)])
