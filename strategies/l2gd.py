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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from corsage.core.arrays import Arrays
from corsage.core.callbacks import Callback
from corsage.core.config import Config, TrainKeys
from corsage.core.errors import ConfigError, ModelError
from corsage.core.keys import Keys, key
from corsage.core.replies import Outcome
from corsage.core.seeding import generator
from corsage.networks.network import Network
from corsage.strategies.rounds.base import Strategy

BLOCK = 4096  # coins that are drawn in one go


@dataclass(frozen=True)
class L2GDKeys(Keys):
    """Keys of L2GD."""

    title = "L2GD"

    l2gd_lambda: float = key(0.1, "weight of the distance to the mean (lambda)", low=0.0)
    l2gd_p: float = key(
        0.02, "probability of an aggregation step (p): 1/p local steps a round, or so",
        low=1e-4, high=0.9999,
    )  # fmt: skip
    l2gd_coins: int = key(
        0, "coins that a round stands for at most; 0: all up to the next exchange", low=0
    )


class L2GD(Strategy):
    """The server of L2GD: it holds the mean of all users' models, and its place in the coins."""

    name = "l2gd"

    def __init__(
        self,
        config: Config | dict[str, Any] | None = None,
        callbacks: Sequence[Callback] = (),
        experiment: str = "",
    ) -> None:
        super().__init__(config, callbacks, experiment)
        self._weighting, once = self.config.train.weighting, "uniform"
        self.config = replace(self.config, train=replace(self.config.train, weighting=once))
        assert isinstance(self.keys, L2GDKeys)
        if (c := contraction(self.config.train, self.keys)) > 1:
            raise ConfigError(
                f"l2gd-lambda={self.keys.l2gd_lambda:g}: an aggregation step would go "
                f"lr lambda (1 - p)/p = {c:.3g} of the way to the mean, at most 1 is possible: "
                "lower l2gd-lambda or lr, or raise l2gd-p."
            )

    def initial(self, network: Network) -> Arrays:
        """x_i = x^0 for all users, so the mean is that too."""
        if self._weighting != "uniform":
            self.note(f"weighting={self._weighting} is not used: the mean counts each user once")
        self.state.scalars |= {"users": self.users, "coins": 0}
        return {"model": network.initial}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The round's coins, as two numbers, and the mean."""
        self._prepare(grid, arrays)
        r, k = self._coins()
        options = ConfigRecord({**config, "aggregation-steps": r, "local-steps": k})
        return super().configure_train(server_round, arrays, options, grid)

    def merge(self, outcome: Outcome) -> Arrays:
        """mean += 1/n sum of the users' changes; the round's coins are spent."""
        scalars, mean = self.state.scalars, self.state.arrays["model"]
        known: list[str] = scalars["users"]
        if new := sorted(set(self.users) - set(known)):
            share = len(new) / (len(known) + len(new))
            mean = mean + share * (self.network.initial - mean)
            scalars["users"] = known = [*known, *new]
        scalars["coins"] += sum(self._coins())
        share = len(outcome.users) / len(known)
        return {"model": (mean + share * outcome.mean["change"]).astype(np.float32)}

    def template(self) -> Arrays:
        """A user sends back how its model changed."""
        return {"change": self.state.arrays["model"]}

    def _coins(self) -> tuple[int, int]:
        """The aggregation steps and the local steps of the round that comes next."""
        assert isinstance(self.keys, L2GDKeys)
        seed, first = self.config.run.seed, self.state.scalars["coins"]
        return coins(seed, self.keys.l2gd_p, first, self.keys.l2gd_coins)

    def accept(self, named: ArrayRecord) -> Arrays:
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
    """Whether a coin says aggregation step."""
    return bool(_block(seed, number // BLOCK)[number % BLOCK] < p)


@lru_cache(maxsize=4)
def _block(seed: int, number: int) -> NDArray[np.float64]:
    return generator(seed, "l2gd coins", number).random(BLOCK)
