"""FedAMP at the users: SGD on one's own loss, and a pull towards one's own message."""

from __future__ import annotations

from corsage.clients.base import Got, Sent
from corsage.clients.local import LocalClient
from corsage.core.messages.asked import Takes, floats
from corsage.networks.batches import Examples
from corsage.networks.proximal import Pull
from corsage.strategies.fedamp import FedAMPKeys


class FedAMPClient(LocalClient[FedAMPKeys]):
    """The users of FedAMP (Huang et al. 2021, Algorithm 1); each is judged by its w_i."""

    takes = Takes(rows={"message": floats("P")})

    def train(self, got: Got, data: Examples) -> Sent:
        """w_i <- SGD on F_i(w) + lambda / (2 alpha_k) |w - u_i|^2."""
        pull = Pull(self.keys.fedamp_lambda, got.rows["message"])
        w_i = self.sgd(self.models(got).whole, data, pull=pull)
        return Sent(rows={"model": w_i}, keep={"model": w_i})
