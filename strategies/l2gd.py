"""L2GD: a model for each user, coins that say when to learn and when to come closer.

Hanzely, Richtarik: Federated Learning of a Mixture of Global and Local Models, 2020 (Loopless
Local Gradient Descent, Algorithm 1), for

    min over x_1, ..., x_n of  1/n sum_i f_i(x_i) + lambda/(2n) sum_i |x_i - mean|^2.   (2)

In each iteration a coin falls, the same for all users. With probability 1 - p a local step,
x_i <- x_i - alpha/(n (1 - p)) nabla f_i(x_i); with probability p an aggregation step,
x_i <- x_i - alpha lambda/(n p) (x_i - mean). The mean weights every user once.

`lr` is the size of the local step, alpha = lr n (1 - p), so an aggregation step goes
c = lr lambda (1 - p)/p of the way to the mean, which does not depend on n. Gradients are those of
minibatches (batch-size as large as a user's data: the paper's); momentum, if any, begins anew in
each run of local steps (momentum=0: the paper's).

The coins are drawn up front and run together. Aggregation steps leave the mean where it is, so r
of them in a row are x_i <- mean + (1 - c)^r (x_i - mean); k local steps in a row need no message.
A round is r aggregation steps, then k local steps, then one exchange: exactly the coins up to the
next aggregation step. With `l2gd-coins` a round ends at the latest after so many coins.

Users send x_i's change, and the server adds 1/n of the sum to the mean of all n users. So it is
the mean over all of them also with fraction-train < 1, where the paper, which asks all, says
nothing: then the drawn users alone take the round's steps, the others' x_i stand still. A user
that comes later counts from then on. (If a device loses its model, it starts anew and its old one
stays in the mean.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from corsage.core.arrays import Arrays, Floats32
from corsage.core.configuration.key_groups import TrainKeys
from corsage.core.errors import ConfigError, ModelError
from corsage.core.keys import Keys, key
from corsage.core.messages.replies import Replies
from corsage.core.seeding import generator
from corsage.strategies.rounds.base import Strategy

if TYPE_CHECKING:
    from corsage.networks.network import Network

COINS_AT_ONCE = 4096  # coins that are drawn in one go


@dataclass(frozen=True)
class L2GDKeys(Keys):
    """Keys of L2GD."""

    title = "L2GD"

    l2gd_lambda: float = key(
        0.1, "weight of the distance to the mean (lambda)", tuned=(0.01, 10.0), low=0.0
    )
    l2gd_p: float = key(
        0.02, "probability of an aggregation step (p): 1/p local steps a round, or so",
        tuned=(0.02, 0.5), low=1e-4, high=0.9999,
    )  # fmt: skip
    l2gd_coins: int = key(
        0, "coins that a round stands for at most; 0: all up to the next exchange", low=0
    )


@dataclass
class L2GDState:
    """The mean of all users' models, who they are, and how many coins have fallen."""

    model: Floats32
    users: list[str]
    coins: int = 0


class L2GD(Strategy[L2GDKeys, L2GDState]):
    """The server of L2GD: it holds the mean of all users' models, and its place in the coins."""

    name = "l2gd"
    tuned = ("own",)
    own_steps = "coins draw its steps"
    no_server_step = "it averages changes of personal models, there is none that it moves"
    changes = ("change",)

    def prepare(self) -> None:
        """Aggregation steps must not go beyond the mean, which counts each user once."""
        once = replace(self.config.train, weighting="uniform")
        self.job.config = replace(self.config, train=once)
        if (c := contraction(self.config.train, self.keys)) > 1:
            raise ConfigError(
                f"l2gd-lambda={self.keys.l2gd_lambda:g}: an aggregation step would go "
                f"lr lambda (1 - p)/p = {c:.3g} of the way to the mean, at most 1 is possible: "
                "lower l2gd-lambda or lr, or raise l2gd-p."
            )

    def initial(self, network: Network) -> L2GDState:
        """x_i = x^0 for all users, so the mean is that too."""
        if self.config.train.weighting != "uniform":
            self.job.note(
                f"weighting={self.config.train.weighting} is not used: the mean counts each user "
                "once"
            )
        return L2GDState(network.initial, self.members.users)

    def options(self, number: int) -> dict[str, Any]:
        """The round's coins, as two numbers."""
        r, k = self._coins()
        return {"aggregation-steps": r, "local-steps": k}

    def merge(self, replies: Replies) -> L2GDState:
        """mean += 1/n sum of the users' changes; the round's coins are spent."""
        mean, known = self.state.model, self.state.users
        if new := sorted(set(self.members.users) - set(known)):
            share = len(new) / (len(known) + len(new))
            mean = mean + share * (self.job.network.initial - mean)
            known = [*known, *new]
        share = len(replies.users) / len(known)
        mean = (mean + share * replies.mean["change"]).astype(np.float32)
        return L2GDState(mean, known, self.state.coins + sum(self._coins()))

    def template(self) -> Arrays:
        """A user sends back how its model changed."""
        return {"change": self.state.model}

    def _coins(self) -> tuple[int, int]:
        """The aggregation steps and the local steps of the round that comes next."""
        keys = self.keys
        return coins(self.config.run.seed, keys.l2gd_p, self.state.coins, keys.l2gd_coins)

    def accept(self, named: Arrays) -> L2GDState:
        """Users begin with the model of the run's keys and seed, and nobody tells them another."""
        raise ModelError("l2gd: initial_arrays cannot be given, users begin with the run's own.")


def contraction(train: TrainKeys, keys: L2GDKeys) -> float:
    """c = alpha lambda/(n p) with alpha = lr n (1 - p): one aggregation step's way to the mean."""
    return train.lr * keys.l2gd_lambda * (1 - keys.l2gd_p) / keys.l2gd_p


def aggregate(models: NDArray[Any], mean: NDArray[Any], c: float, r: int) -> NDArray[Any]:
    """r aggregation steps at once: x <- mean + (1 - c)^r (x - mean)."""
    near: NDArray[Any] = mean + (1 - c) ** r * (models - mean)
    return near.astype(models.dtype)


def coins(seed: int, p: float, first: int, limit: int) -> tuple[int, int]:
    """Coins from number `first` on, as r aggregation and then k local steps.

    They end before an aggregation step that follows a local one, or after `limit` coins.
    """
    r = k = 0
    while not limit or r + k < limit:
        if not falls(seed, p, first + r + k):
            k += 1
        elif k:
            break
        else:
            r += 1
    return r, k


def falls(seed: int, p: float, number: int) -> bool:
    """True if a coin says aggregation step."""
    return bool(_block(seed, number // COINS_AT_ONCE)[number % COINS_AT_ONCE] < p)


@lru_cache(maxsize=4)
def _block(seed: int, number: int) -> NDArray[np.float64]:
    return generator(seed, "l2gd coins", number).random(COINS_AT_ONCE)
