"""FedRep with heads by convex clustering, at the users."""

from __future__ import annotations

import numpy as np

from corsage.clients.base import Got, Models
from corsage.clients.fedrep.pulled_heads import PulledHeadsClient
from corsage.core.arrays import Floats32
from corsage.networks.batches import Examples
from corsage.networks.user_scores import score
from corsage.strategies.fedrep.fedrep_convex import FedRepConvexKeys


class FedRepConvexClient(PulledHeadsClient[FedRepConvexKeys]):
    """Users take y_i to h_i, on f_i(h) + rho/2 |h - (2 y_i - s_i)|^2."""

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """A new user has the best cluster's head as y and s, and so as the centre of its pull."""
        phi = got.shared["body"]
        y = self.best(phi, got.shared["heads"], data)
        return Models(phi, self.head(got, y, y, data, epochs))

    def tuned(self, got: Got, data: Examples, epochs: int, part: str) -> Models:
        """Others begin at y_i, as in a round."""
        return super().adapt(got, data, epochs)

    def best(self, phi: Floats32, heads: Floats32, data: Examples) -> Floats32:
        """The cluster's head with the least loss on each user's training data."""
        network, users = self.network, len(self.users)
        models = (Models(phi, np.tile(h, (users, 1))) for h in heads)
        outputs = (model.outputs(network, data, alone=False) for model in models)
        losses = [score(network.criterion, own, data).loss for own in outputs]
        return np.asarray(heads[np.argmin(losses, axis=0)])
