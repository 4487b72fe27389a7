"""Fed-MTL at the users: SGD on one's own loss and the regulariser, on a model of one's own.

Smith et al. 2017, Algorithm 1, lines of the nodes; its local subproblem is solved by SGD.
"""

from __future__ import annotations

from corsage.clients.base import Got, Models, Sent
from corsage.clients.local import LocalClient
from corsage.core.messages.asked import Takes, floats
from corsage.networks.batches import Examples
from corsage.networks.proximal import Pull
from corsage.strategies.fedmtl import FedMTLKeys


class FedMTLClient(LocalClient[FedMTLKeys]):
    """The users of Fed-MTL; each evaluates the model that it keeps."""

    takes = Takes(rows={"centre": floats("P"), "strength": floats()})

    def train(self, got: Got, data: Examples) -> Sent:
        """w_i <- SGD on f_i(w) + strength_i / 2 |w - centre_i|^2."""
        pull = Pull(got.rows["strength"], got.rows["centre"])
        w_i = self.sgd(self.models(got).whole, data, pull=pull)
        return Sent(rows={"model": w_i}, keep={"model": w_i})

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """A new user is one more task, and begins where the regulariser alone would have it."""
        centres = got.rows["centre"]
        self.states = [s or {"model": c} for s, c in zip(self.states, centres, strict=True)]
        return super().adapt(got, data, epochs)
