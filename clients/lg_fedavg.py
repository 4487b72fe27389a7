"""LG-FedAvg at the users: body and head learn together, the global part goes back, l_m stays.

Liang et al. 2020, Algorithm 1, device side. A user that was never drawn has its initial l_m, or
that of the warm-up.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from corsage.clients.base import Got, Models, Sent
from corsage.clients.fedper import FedPerClient
from corsage.core.messages.asked import Takes, floats
from corsage.networks.batches import Examples
from corsage.strategies.lg_fedavg import LGFedAvgKeys, local_and_global


class LGFedAvgClient(FedPerClient[LGFedAvgKeys]):
    """The users of LG-FedAvg: FedPer's, with the parts exchanged."""

    takes = Takes(shared={"head": floats("H"), "body": floats("B")})

    own_training = True

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.own, self.shared = local_and_global(self.task.model)

    def train(self, got: Got, data: Examples) -> Sent:
        """(l_m, g_m) <- E epochs of SGD on both at once; in the warm-up both go back."""
        sent = super().train(got, data)
        if self.task.round > self.keys.lg_fedavg_warmup_rounds:
            return sent
        return Sent(mean={**sent.keep, **sent.mean})

    def models(self, got: Got) -> Models:
        """Each user's own l_m with the global g."""
        return Models(self.joined(got))

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """A new user learns its local part beside the global one, which stands."""
        models = self.joined(got)
        starts, heads = models[:, self.network.body], models[:, self.network.head]
        if self.own == "head":
            return Models(starts[0], self.sgd_heads(starts[0], heads, data, epochs))
        bodies = self.sgd_bodies(starts, heads, data, epochs)
        return Models(np.concatenate([bodies, heads], axis=1))
