"""Equal work: strategies that are compared take as many gradients of minibatches in a round.

What counts is one gradient of one minibatch, whatever part of a model it is of: a step of FedRep's
head is one, a batch of Per-FedAvg is two (first order) or four, one of pFedMe is `pfedme-steps`.
A strategy says in `Strategy.epochs` how many it takes as its keys are set, in epochs of the user's
data. With work=equal all of its epochs are multiplied by `effort`, so that the sum is the budget
and the shares of its parts stay what they were.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from corsage.core.configuration.config import Config
from corsage.core.configuration.key_groups import TrainKeys
from corsage.core.keys import Keys
from corsage.strategies import strategy_class

EQUAL = "equal"


def as_set(config: Config, name: str) -> float | None:
    """Epochs of gradients a round that a strategy takes as its keys are set; None: not counted."""
    return strategy_class(name).epochs(config.train, config.keys_of(name))


def with_budget(config: Config, others: Iterable[float | None] = ()) -> Config:
    """A configuration whose strategies have one budget: that of the most costly, if none is set.

    Parameters
    ----------
    others : epochs a round of strategies that are compared with those of the configuration.
    """
    train = config.train
    if train.work != EQUAL or train.work_epochs:
        return config
    sums = [*(as_set(config, name) for name in config.run.strategy), *others]
    most = max((epochs for epochs in sums if epochs), default=train.local_epochs)
    return replace(config, train=replace(train, work_epochs=float(most)))


def unequal(config: Config) -> dict[str, str]:
    """The strategies of a comparison whose steps are their own, and why."""
    names = [name for name in config.run.strategy if as_set(config, name) is None]
    return {name: strategy_class(name).own_steps or "as its keys say" for name in names}


def said(config: Config) -> str:
    """A line on the work of compared strategies; empty where there is nothing to compare."""
    keys, names = unequal(config), config.run.strategy
    if len(names) < 2 or len(keys) == len(names):
        return ""
    if config.train.work != EQUAL:
        return "Work as set: each strategy takes the steps that its own keys say."
    train = config.train
    epochs = f"{train.work_epochs:g} epoch{'' if train.work_epochs == 1 else 's'} of"
    many = f"{train.local_steps}" if train.local_steps else epochs
    line = f"Equal work: {many} gradient steps a user and round"
    others = [f"{name} ({why})" for name, why in keys.items()]
    if "local" in names and getattr(config.keys_of("local"), "local_always", False):
        others.append("local (in every round)")
    return f"{line}; but {', '.join(others)}." if others else f"{line}."


def work_of(name: str, train: TrainKeys, keys: Keys) -> tuple[float, float]:
    """The factor of all epochs of a strategy's round, and the steps that stand for an epoch.

    These are where `local-steps` says how many all methods do; 0: an epoch is all batches of the
    user's data.
    """
    budget = train.work_epochs or train.local_steps
    own = strategy_class(name).epochs(train, keys) if train.work == EQUAL and budget else None
    if not own:
        return 1.0, 0.0
    return train.work_epochs / own if train.work_epochs else 1.0, train.local_steps / own


def whole_steps(steps: float, number: int) -> int:
    """Steps of round `number`, where so many are due in each: whole, and right over the rounds."""

    def due(rounds: int) -> int:
        return math.floor(round(steps * rounds, 6) + 0.5)

    return due(max(number, 1)) - due(max(number, 1) - 1)
