"""FedRep at the users: tau epochs of the head, then the body, then the body goes back.

Collins et al. 2021, Algorithm 1, lines of the client. The head is user i's own and never sent; a
user that was never drawn keeps its initial head.
"""

from __future__ import annotations

from corsage.clients.base import Client, Got, Models, Sent
from corsage.core.arrays import Floats32
from corsage.core.messages.asked import Takes, floats
from corsage.networks.batches import Examples
from corsage.strategies.fedrep.fedrep import FedRepKeys


class FedRepClient(Client[FedRepKeys]):
    """The users of FedRep."""

    takes = Takes(shared={"body": floats("B")})

    personal = True
    own_training = True

    def train(self, got: Got, data: Examples) -> Sent:
        """h_i <- tau epochs of SGD at (h_i, phi^t), then phi_i <- SGD at (h_i, phi)."""
        phi = got.shared["body"]
        h = self.sgd_heads(phi, self.heads(), data, self.keys.head_epochs)
        phi_i = self.sgd_bodies(phi, h, data)
        return Sent(mean={"body": phi_i}, keep={"head": h})

    def models(self, got: Got) -> Models:
        """The new body under each user's own head."""
        return Models(got.shared["body"], self.heads())

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """A new user learns a head and nothing else (the paper's section 5.2)."""
        phi = got.shared["body"]
        return Models(phi, self.sgd_heads(phi, self.heads(), data, epochs))

    def heads(self) -> Floats32:
        """h_i, or the initial head."""
        return self.remembered("head", self.network.initial[self.network.head])
