"""pFedMe at the users: theta_i goes after the batches, and w_i after theta_i."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from corsage.clients.base import Client, Got, Models, Sent
from corsage.core.messages.asked import Takes, floats
from corsage.networks.batches import Examples
from corsage.networks.proximal import Pull
from corsage.strategies.pfedme import PFedMeKeys


class PFedMeClient(Client[PFedMeKeys]):
    """The users of pFedMe (Dinh et al. 2020, Algorithm 1)."""

    takes = Takes(shared={"model": floats("P")})

    personal = True

    def train(self, got: Got, data: Examples) -> Sent:
        """R times: K steps on f_i(theta; D) + lambda/2 |theta - w_i|^2, then w_i follows theta."""
        keys, start = self.keys, got.shared["model"]
        rounds = self.orders("model", data)
        orders = [[batch for batch in order for _ in range(keys.pfedme_steps)] for order in rounds]
        w = np.tile(start, (len(self.users), 1))
        speed = self.settings.lr * keys.pfedme_lambda
        pull = Pull(keys.pfedme_lambda, w, every=keys.pfedme_steps, follow=speed)
        settings = replace(self.settings, lr=keys.pfedme_personal_lr)
        theta = self.sgd(start, data, orders=orders, pull=pull, settings=settings)
        return Sent(mean={"model": w}, keep={"personal": theta})

    def models(self, got: Got) -> Models:
        """Each user's own theta_i, as it was when the user was last drawn."""
        return Models(self.remembered("personal", self.network.initial))
