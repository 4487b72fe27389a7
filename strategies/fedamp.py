"""FedAMP: each user is drawn to a mean of the others' models, the more so the liker they are.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang: Personalized Cross-Silo Federated Learning on Non-IID Data,
AAAI 2021, Algorithm 1. The objective is sum_i F_i(w_i) + lambda sum_{i<j} A(|w_i - w_j|^2) with
A(x) = 1 - e^(-x / sigma). In turns the server takes a step of alpha_k on the second sum, and so
makes a message for each user,

    u_i = (1 - sum_{j != i} xi_ij) w_i + sum_{j != i} xi_ij w_j,
    xi_ij = alpha_k A'(|w_i - w_j|^2),

and user i minimises F_i(w) + lambda / (2 alpha_k) |w - u_i|^2, here by SGD from its own w_i. The
term has a gradient; some published code takes it of a state dict, whose tensors have none.

The paper wants alpha_k so small that no weight is negative, which depends on sigma and on how many
users there are, and sets sigma by hand to what distances come to. So the keys are those of ratios:
`fedamp-alpha` is alpha_k (m - 1) / sigma, what all others would weigh at distance 0;
`fedamp-sigma` is sigma over the mean of |w_i - w_j|^2; `fedamp-lambda` is lambda / alpha_k. In that
mean models far from the median of all do not count: one would make all others alike.

The m models are those that came last of users that have trained. One that has not has w^0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord

from corsage.core.arrays import Arrays, Floats, Floats32
from corsage.core.keys import Keys, key
from corsage.core.messages.encoding import encode
from corsage.core.messages.replies import Replies
from corsage.core.registry import attachment
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.means.user_rows import enter, places
from corsage.strategies.rounds.model_arrays import without_statistics
from corsage.strategies.rounds.turns import Parcel

if TYPE_CHECKING:
    from corsage.networks.network import Network


@dataclass(frozen=True)
class FedAMPKeys(Keys):
    """Keys of FedAMP."""

    title = "FedAMP"
    example: ClassVar = {"dataset": "moons", "lr": "0.1"}

    fedamp_alpha: float = key(
        1.0, "what others weigh in a user's message if all are alike", low=0.0, high=1.0
    )
    fedamp_sigma: float = key(
        0.2,
        "the squared distance at which they weigh 1/e of it, in means of all",
        tuned=(0.02, 2.0),
        low=1e-3,
    )
    fedamp_lambda: float = key(
        5.0, "pull towards the message (lambda / alpha)", tuned=(0.5, 50.0), low=0.0
    )


@dataclass
class FedAMPState:
    """W.

    Parameters
    ----------
    users : whose rows these are: those that have trained.
    models : w_j, one row a user.
    """

    users: list[str]
    models: Floats32


class FedAMP(Strategy[FedAMPKeys, FedAMPState]):
    """The server of FedAMP: it holds W, and makes each user's message."""

    name = "fedamp"
    tuned = ("own",)
    by_user = ("model",)
    unprotected = "users' models are their own, nothing is averaged"
    no_server_step = unprotected

    def initial(self, network: Network) -> FedAMPState:
        """Nobody has trained."""
        return FedAMPState([], np.zeros((0, len(network.initial)), np.float32))

    def shared(self) -> Arrays:
        """Nothing is the same for all."""
        return {}

    def send(self, users: list[str]) -> Parcel:
        """u_i for each user."""
        first, models = self.job.network.initial, self.state.models
        at = places(self.state.users, users)
        own = np.concatenate([models, first[None]])[at]  # the last row is of those at -1
        mine, all_ = (without_statistics(self.job.network, rows - first) for rows in (own, models))
        xi = attention(mine, all_, at.tolist(), self.keys.fedamp_alpha, self.keys.fedamp_sigma)
        return Parcel(rows={"message": own + (xi @ models - xi.sum(1, keepdims=True) * own)})

    def show(self, users: list[str], options: Mapping[str, Any]) -> Parcel:
        """Users evaluate what they have at home; new users need their message."""
        return self.send(users) if options.get("adapt") or options.get("fine-tune") else Parcel()

    def template(self) -> Arrays:
        """A user sends back w_i."""
        return {"model": self.job.network.initial}

    def merge(self, replies: Replies) -> FedAMPState:
        """Take over the users' w_i."""
        state, new = self.state, replies.rows["model"]
        first = self.job.network.initial
        users, models = enter(state.users, state.models, replies.users, new, first)
        return FedAMPState(users, models)

    def named_arrays(self) -> ArrayRecord:
        """W in the order of the state's users."""
        return encode({"models": self.state.models})


def attention(
    own: Floats32, models: Floats32, at: list[int], alpha: float, sigma: float
) -> Floats32:
    """xi (users, m): alpha e^(-d / (sigma d')) / others, d = |w_i - w_j|^2, d' its mean over pairs.

    `at` is each user's own row of the m models, of which it has no weight; -1 if it has none.
    """
    import torch

    rules, known = attachment("robust"), torch.from_numpy(models)
    near = known[~rules.outlying(models, rules.FAR_MODEL)] if rules and len(known) else known
    mean = 2 * float(near.var(0).sum()) if len(near) > 1 else 0.0  # over i != j
    apart = torch.cdist(torch.from_numpy(own), known).square().numpy()
    xi: Floats = alpha * np.exp(-apart / (sigma * mean or 1.0))
    mine = np.array(at)[:, None] == np.arange(len(known))
    xi[mine] = 0.0
    shared: Floats32 = (xi / np.maximum((~mine).sum(1, keepdims=True), 1)).astype(np.float32)
    return shared
