"""FedRep's heads drawn together, at the users: the server says to what.

It says where each head begins, the centre of its pull and how strong that is, and the head goes
back beside the body: FedRep's round with (Collins et al. 2021, Algorithm 1) one more term.
"""

from __future__ import annotations

from typing import TypeVar

from corsage.clients.base import Client, Got, Models, Sent
from corsage.core.arrays import Floats32
from corsage.core.messages.asked import Takes, floats
from corsage.networks.batches import Examples
from corsage.networks.proximal import Pull
from corsage.strategies.fedrep.fedrep import FedRepKeys

H = TypeVar("H", bound=FedRepKeys)


class PulledHeadsClient(Client[H]):
    """Users that keep nothing: their heads are at the server."""

    takes = Takes(
        shared={"body": floats("B"), "heads": floats("K", "H")},
        rows={"head": floats("H"), "centre": floats("H"), "strength": floats()},
    )

    def train(self, got: Got, data: Examples) -> Sent:
        """h_i <- tau epochs of SGD on f_i(h; phi^t) + pull, then phi_i <- SGD at (h_i, phi)."""
        h = self.head(got, got.rows["head"], got.rows["centre"], data, self.keys.head_epochs)
        phi_i = self.sgd_bodies(got.shared["body"], h, data)
        return Sent(mean={"body": phi_i}, rows={"head": h})

    def models(self, got: Got) -> Models:
        """The new body under the head that the server has for each user."""
        return Models(got.shared["body"], got.rows["head"])

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """A new user learns a head and nothing else, under its pull."""
        h = self.head(got, got.rows["head"], got.rows["centre"], data, epochs)
        return Models(got.shared["body"], h)

    def head(
        self, got: Got, start: Floats32, centre: Floats32, data: Examples, epochs: int
    ) -> Floats32:
        """h_i after epochs of SGD on f_i(h; phi^t) + strength_i/2 |h - centre_i|^2."""
        pull = Pull(got.rows["strength"], centre)
        return self.sgd_heads(got.shared["body"], start, data, epochs, pull)
