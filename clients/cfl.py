"""CFL at the users: train the model of one's cluster, send it back.

Sattler et al. 2021, Algorithm 3, lines of the clients. A user neither knows nor needs to know
its cluster: the server sends it one model, and takes the update as the difference.
"""

from __future__ import annotations

import numpy as np

from corsage.clients.base import Client, Got, Models, Sent
from corsage.core.messages.asked import Takes, floats, ints
from corsage.networks.batches import Examples
from corsage.strategies.cfl import CFLKeys


class CFLClient(Client[CFLKeys]):
    """The users of CFL."""

    takes = Takes(
        shared={
            "models": floats("K", "P"),
            "cuts": ints("K", 2),
            "cut-models": floats("K", "P"),
            "cut-directions": floats("K", 2, "P"),
        },
        rows={"model": floats("P")},
    )

    def train(self, got: Got, data: Examples) -> Sent:
        """theta_i <- SGD_n(theta_c(i), D_i)."""
        return Sent(rows={"model": self.sgd(got.rows["model"], data)})

    def models(self, got: Got) -> Models:
        """The model of each user's cluster."""
        return Models(got.rows["model"])

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """A new user finds its cluster, and trains the cluster's model for itself."""
        tree, labels = got.shared, np.zeros(len(self.users), np.int64)
        for s, (c, new) in enumerate(tree.get("cuts", np.empty((0, 2), np.int64))):
            model, sides = tree["cut-models"][s], tree["cut-directions"][s]
            alike = (self.sgd(model, data, epochs=epochs) - model) @ sides.T
            labels[(labels == c) & (alike[:, 1] > alike[:, 0])] = new
        return Models(self.sgd(tree["models"][labels], data, epochs=epochs))
