"""FedFomo: each user weighs the others' models by what they would gain it.

Zhang, Sapra, Fidler, Yeung, Alvarez: Personalized Federated Learning with First Order Model
Optimization, ICLR 2021. The server keeps the model theta_n that each user sent last, and sends M of
the others' to a user of the round. With L_i the loss on samples that user i does not train on, and
theta_i the model from which it trained last, what n is worth to it is

    w_n = (L_i(theta_i) - L_i(theta_n)) / |theta_n - theta_i|,                               (4)

of its own trained model, too. It goes on from theta_i + sum_n w_n+ (theta_n - theta_i), where w+
are the positive ones over their sum, trains that, and sends it, and what each model was worth. The
server adds that up, P_in <- P_in + w_n, and sends those whose P_in is largest, or with probability
epsilon, for each, one at random.

Where no model is better than theta_i the user goes on from its own trained one; the authors' code
from theta_i, so that its last round is lost. Epsilon does not fall from round to round here, and
models far from the median of all are sent to nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord

from corsage.core.arrays import Arrays, Floats32, Ints
from corsage.core.keys import Keys, key
from corsage.core.messages.encoding import encode
from corsage.core.messages.replies import Replies
from corsage.core.registry import attachment
from corsage.core.seeding import generator
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.means.user_rows import enter, places
from corsage.strategies.rounds.model_arrays import without_statistics
from corsage.strategies.rounds.turns import Parcel

if TYPE_CHECKING:
    from corsage.networks.network import Network


@dataclass(frozen=True)
class FedFomoKeys(Keys):
    """Keys of FedFomo."""

    title = "FedFomo"

    fedfomo_models: int = key(
        5, "models of others that a user gets in a round (M); 0: local", tuned=(1, 10), low=0
    )
    fedfomo_epsilon: float = key(
        0.3, "probability that one of them is drawn at random", tuned=(0.0, 1.0), low=0.0, high=1.0
    )
    fedfomo_validation: float = key(
        0.2,
        "share of a user's training samples that it weighs models on, and trains on none of; "
        "0: it weighs them on those that it trains on",
        low=0.0,
        high=0.9,
    )


@dataclass
class FedFomoState:
    """Replies of users.

    Parameters
    ----------
    users : whose rows these are: those that have trained.
    models : theta_n, one row a user.
    worth : P (users, users).
    turn : the rounds that were merged.
    """

    users: list[str]
    models: Floats32
    worth: Floats32
    turn: int = 0


class FedFomo(Strategy[FedFomoKeys, FedFomoState]):
    """The server of FedFomo: it holds all theta_n and P, and averages nothing."""

    name = "fedfomo"
    tuned = ("own",)
    by_user = ("model", "weights")
    unprotected = "users weigh the others' models on samples of their own, nothing is averaged"
    no_server_step = unprotected

    def initial(self, network: Network) -> FedFomoState:
        """Nobody has trained."""
        none = np.zeros((0, 0), np.float32)
        return FedFomoState([], np.zeros((0, len(network.initial)), np.float32), none)

    def shared(self) -> Arrays:
        """Nothing is the same for all."""
        return {}

    def send(self, users: list[str]) -> Parcel:
        """The models of others, as many for each of the users."""
        others = self.others(users)
        return Parcel(rows={"others": self.state.models[others]}) if others.size else Parcel()

    def others(self, users: Sequence[str]) -> Ints:
        """The rows of those whose models users get now (users, K): the same when asked again.

        K is M, if there are so many. A model far out is sent to nobody: alone better than a bad
        theta_i, it would be all that a user goes on from.
        """
        state, keys, rules = self.state, self.keys, attachment("robust")
        learnt = without_statistics(self.job.network, state.models)
        far = rules.outlying(learnt, rules.FAR_MODEL) if rules and len(learnt) else []
        near = np.setdiff1d(np.arange(len(state.users)), np.flatnonzero(far))
        count, found = min(keys.fedfomo_models, max(len(near) - 1, 0)), list[list[int]]()
        worth = np.pad(state.worth, ((0, 1), (0, 0)))  # the last row is of those at -1
        for user, own in zip(users, places(state.users, users), strict=True):
            rng = generator(self.config.run.seed, "others' models", state.turn, user)
            found.append(picked(worth[own], near[near != own], count, keys.fedfomo_epsilon, rng))
        return np.array(found, np.int64)

    def show(self, users: list[str], options: Mapping[str, Any]) -> Parcel:
        """Users evaluate what they have at home; who trains for it weighs others' models first."""
        return self.send(users) if options.get("adapt") or options.get("fine-tune") else Parcel()

    def template(self) -> Arrays:
        """A user sends its model, and what its own last one and each of the others' were worth."""
        worth = np.zeros(1 + self.keys.fedfomo_models, np.float32)
        return {"model": self.job.network.initial, "weights": worth}

    def merge(self, replies: Replies) -> FedFomoState:
        """Take over theta_n, and P_in <- P_in + w_n of those that a user got."""
        state, got = self.state, self.others(replies.users)
        first, new = self.job.network.initial, replies.rows["model"]
        users, models = enter(state.users, state.models, replies.users, new, first)
        worth = np.zeros((len(users), len(users)), np.float32)
        worth[: len(state.users), : len(state.users)] = state.worth
        rows = zip(places(users, replies.users), got, replies.rows["weights"], strict=True)
        for row, others, weights in rows:
            worth[row, others] += weights[1 : 1 + len(others)]
        return FedFomoState(users, models, worth, state.turn + 1)

    def named_arrays(self) -> ArrayRecord:
        """The models in the order of the state's users."""
        return encode({"models": self.state.models})


def picked(
    worth: Floats32, among: Ints, count: int, epsilon: float, rng: np.random.Generator
) -> list[int]:
    """So many of some rows: each the next best, or with probability epsilon any that is left."""
    order = rng.permutation(among)  # of those that are worth as much any is the next
    best, found = order[np.argsort(-worth[order], kind="stable")].tolist(), list[int]()
    for _ in range(count):
        at = int(rng.integers(len(best))) if rng.random() < epsilon else 0
        found.append(best.pop(at))
    return found
