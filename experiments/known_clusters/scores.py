"""Scores of users under a strategy: section 6.2 of Lyu et al. 2022, and errors of prediction."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from corsage.app.client_app import app
from corsage.app.engines import number_of_nodes
from corsage.app.local_grid import LocalGrid
from corsage.app.output.progress import Watcher
from corsage.core.arrays import Floats
from corsage.core.configuration.config import Config
from corsage.core.keys import kebab
from corsage.core.messages.replies import Replies
from corsage.datasets.user_data import FederatedData
from corsage.strategies import strategy_class

CAP = 100.0
"""The cross-entropy of a user whose own one overflows."""
HIGH = 1.0
"""Users above this are counted."""


@dataclass(frozen=True, eq=False)
class Scores:
    """One model a user, judged on its test records.

    Parameters
    ----------
    users : ids, sorted.
    loss : mean cross-entropy of each, at most CAP.
    accuracy : share of its records.
    seconds : CPU time of training and evaluation.
    """

    users: list[str]
    loss: Floats
    accuracy: Floats
    seconds: float

    def statistics(self) -> dict[str, float]:
        """What Table 2 prints, and how many users are above HIGH."""
        quartiles = np.quantile(self.loss, [0.25, 0.5, 0.75]).tolist()
        return {
            "mean": float(self.loss.mean()),
            "SD": float(self.loss.std()),
            **dict(zip(("25%", "50%", "75%"), quartiles, strict=True)),
            "max": float(self.loss.max()),
            f"users above {HIGH:g}": float((self.loss > HIGH).sum()),
        }

    def accuracies(self, ours: Scores) -> dict[str, float]:
        """What Table 3 prints; the last is the share of users with whom `ours` is no worse."""
        quartiles = np.quantile(self.accuracy, [0.25, 0.5, 0.75]).tolist()
        return {
            "accuracy": float(self.accuracy.mean()),
            **dict(zip(("25%", "50%", "75%"), quartiles, strict=True)),
            "ours no worse": float((ours.accuracy >= self.accuracy - 1e-12).mean()),
        }


def difference(one: Scores, other: Scores) -> tuple[float, float]:
    """The mean over users of one's cross-entropy less the other's, and its standard error."""
    gaps = one.loss - other.loss
    return float(gaps.mean()), float(gaps.std() / np.sqrt(len(gaps)))


def evaluated(name: str, keys: Mapping[str, Any]) -> Replies:
    """Train with a strategy; the evaluation of all users."""
    config = Config.parse({**{kebab(key): value for key, value in keys.items()}, "strategy": name})
    strategy = strategy_class(name)(config, [Watcher(config.run.num_rounds)])
    strategy.start(LocalGrid(app, number_of_nodes(config)))
    return strategy.members.exchange(strategy.evaluation({}))


def root_mean_square(name: str, keys: Mapping[str, Any]) -> float:
    """The error over all test records, where labels are numbers."""
    found = evaluated(name, keys).metrics
    return float(np.sqrt(np.sum(found["squared-error"]) / np.sum(found["num-examples"])))


def scores(name: str, keys: Mapping[str, Any]) -> Scores:
    """Every user's scores, where labels are classes."""
    begin, replies = time.process_time(), evaluated(name, keys)
    order = np.argsort(replies.users)
    found = {key: np.asarray(rows)[order] for key, rows in replies.metrics.items()}
    return Scores(
        [replies.users[i] for i in order],
        np.minimum(found["loss"], CAP),
        found["correct"] / found["num-examples"],
        time.process_time() - begin,
    )


def constant(data: FederatedData) -> tuple[Scores, float]:
    """No model: always the commoner class; its loss is that of the rate in training, also given."""
    order = np.argsort(data.users)
    ends = [data.bounds[i] for i in order]
    train = np.concatenate([data.y[first:middle] for first, middle, _ in ends])
    rate = float(train.mean())
    shares = np.array([data.y[middle:end].mean() for _, middle, end in ends])
    loss = -shares * np.log(rate) - (1 - shares) * np.log(1 - rate)
    accuracy = 1 - shares if rate < 0.5 else shares
    return Scores([data.users[i] for i in order], loss, accuracy, 0.0), rate
