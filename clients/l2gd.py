"""L2GD at the users: come closer to the mean, learn, report the change.

Hanzely and Richtarik 2020, Algorithm 1, with the coins of a round run together.
"""

from __future__ import annotations

from corsage.clients.base import Got, Models, Sent
from corsage.clients.local import LocalClient
from corsage.core.keys import STEP_LIMIT
from corsage.core.messages.asked import Takes, floats
from corsage.core.messages.fields import Whole
from corsage.networks.batches import Examples
from corsage.networks.proximal import Pull
from corsage.strategies.l2gd import L2GDKeys, aggregate, contraction


class L2GDClient(LocalClient[L2GDKeys]):
    """The users of L2GD; each evaluates the model that it keeps."""

    takes = Takes(
        shared={"model": floats("P")},
        options={"aggregation-steps": Whole(), "local-steps": Whole(limit=STEP_LIMIT)},
    )

    def train(self, got: Got, data: Examples) -> Sent:
        """x_i <- mean + (1 - c)^r (x_i - mean), then k local steps."""
        mean, before = got.shared["model"], self.models(got).whole
        r, k = int(got.options["aggregation-steps"]), int(got.options["local-steps"])
        near = aggregate(before, mean, contraction(self.settings, self.keys), r)
        x = self.sgd(near, data, orders=self.orders("model", data, 0, k))
        return Sent(mean={"change": x - before}, keep={"model": x})

    def adapt(self, got: Got, data: Examples, epochs: int) -> Models:
        """A new user minimises its part of (2), f + lambda/2 |x - mean|^2, from the mean; others
        from their x_i."""
        mean, pull = got.shared["model"], Pull(self.keys.l2gd_lambda, got.shared["model"])
        own = self.remembered("model", mean)
        return Models(self.sgd(own, data, epochs=epochs, pull=pull))
