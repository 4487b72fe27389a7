"""pFedMe: the global model is learnt on the users' Moreau envelopes.

Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020,
Algorithm 1. With F_i(w) = min_theta f_i(theta) + lambda/2 |theta - w|^2 (equation 2) user i starts
at w_{i,0} = w_t; in local round r it draws a batch D, finds theta_i ~ argmin of f_i(theta; D) +
lambda/2 |theta - w_{i,r}|^2 (equation 7) by K steps, and takes

    w_{i,r+1} = w_{i,r} - eta lambda (w_{i,r} - theta_i),

for grad F_i(w) = lambda (w - theta_i(w)) (equation 3). After R local rounds it sends w_{i,R}; the
server takes w_{t+1} = (1 - beta) w_t + beta / |S| sum_S w_{i,R}. What is evaluated is theta_i.

As in the authors' code theta_i starts at w_t in each round and goes on from one local round to the
next. Here the R local rounds are the batches of `local-epochs`, eta is `lr`, and only the users
of S work (in the paper all do, which changes no w_t). Each search for theta_i is K steps of the
house's SGD, its momentum new each time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from corsage.core.configuration.key_groups import TrainKeys
from corsage.core.keys import STEP_LIMIT, Keys, key
from corsage.core.messages.replies import Replies
from corsage.strategies.rounds.base import OneModel
from corsage.strategies.rounds.state import ModelState


@dataclass(frozen=True)
class PFedMeKeys(Keys):
    """Keys of pFedMe."""

    title = "pFedMe"

    pfedme_lambda: float = key(
        15.0,
        "lambda of the Moreau envelopes; a local round moves w by lr lambda of its way to theta",
        tuned=(1.0, 50.0),
        low=1e-6,
    )
    pfedme_steps: int = key(
        5,
        "steps K towards theta in a local round; local rounds: local-epochs' batches",
        low=1,
        limit=STEP_LIMIT,
    )
    pfedme_personal_lr: float = key(
        0.01,
        "step size of these steps (lr is eta, that of w). The authors take 0.1, without momentum "
        "and with batches of 20; on batches of 10 theta then fits the last batch and no more",
        low=0.0,
    )
    pfedme_beta: float = key(1.0, "the server's beta: how far w moves to the users' mean", low=0.0)


class PFedMe(OneModel[PFedMeKeys, ModelState]):
    """The server of pFedMe: it holds w, and knows no theta_i."""

    name = "pfedme"

    @classmethod
    def epochs(cls, train: TrainKeys, keys: PFedMeKeys) -> float:
        """K steps on each batch."""
        return keys.pfedme_steps * train.local_epochs

    def stride(self) -> float:
        """beta: w moves by that much of the way to the users' mean."""
        return self.keys.pfedme_beta

    def merge(self, replies: Replies) -> ModelState:
        """w_{t+1} = (1 - beta) w_t + beta mean of w_{i,R}."""
        beta, mean = self.keys.pfedme_beta, replies.mean["model"]
        model = np.float32(1.0 - beta) * self.state.model + np.float32(beta) * mean
        return ModelState(model.astype(np.float32))
