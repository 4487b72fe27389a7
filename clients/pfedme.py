"""pFedMe at the users: theta_i goes after the batches, and w_i after theta_i."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corsage.clients.base import Client, Evaluation, Fit
from corsage.networks.parts import train_models
from corsage.networks.training import Pull, evaluate_models
from corsage.strategies.pfedme import PFedMeKeys


class PFedMeClient(Client):
    """The users of pFedMe (Dinh et al. 2020, Algorithm 1)."""

    personal = True

    def fit(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Fit:
        """R times: K steps on f_i(theta; D) + lambda/2 |theta - w_i|^2, then w_i follows theta."""
        keys = self.task.keys
        assert isinstance(keys, PFedMeKeys)
        (model,) = parameters
        data = self.train_data()
        rounds = self.orders("model", data, self.settings.local_epochs)
        orders = [[batch for batch in order for _ in range(keys.pfedme_steps)] for order in rounds]
        w = np.tile(model, (len(self.users), 1))
        speed = self.settings.lr * keys.pfedme_lambda
        pull = Pull(keys.pfedme_lambda, w, every=keys.pfedme_steps, follow=speed)
        settings = replace(self.settings, lr=keys.pfedme_personal_lr)
        theta = train_models(self.network, model, data, orders, settings, pull)
        self.keep("personal", theta)
        return [w], int(data.sizes.sum()), {"num-examples": data.sizes}

    def evaluate(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Evaluation:
        """Each user's own theta_i, as it was when the user was last drawn."""
        theta = self.remembered("personal", self.network.initial)
        return self.report(evaluate_models(self.network, theta, self.test_data()))
