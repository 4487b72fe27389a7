"""Arrays that come to a client and go from it, and Flower's own messages read as such."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from flwr.client import NumPyClient
from numpy.typing import NDArray
from torch import Tensor

from corsage.core.arrays import Array, Arrays, Floats32, Ints
from corsage.core.errors import ConfigError
from corsage.networks.batches import Examples
from corsage.networks.network import Network
from corsage.networks.user_scores import (
    Scores,
    outputs_of_each,
    outputs_of_heads,
    outputs_of_models,
    outputs_of_picked,
)


@dataclass(frozen=True)
class Got:
    """A message as it came: arrays for all users, arrays with one row a user, and options."""

    shared: Arrays = field(default_factory=dict)
    rows: Arrays = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sent:
    """Arrays that go up and arrays that stay, one row a user.

    Parameters
    ----------
    mean : arrays of which the server needs the mean over users only.
    rows : arrays that it needs user by user.
    keep : what the users remember until their next round.
    metrics : numbers of each user; those of samples are added.
    """

    mean: Arrays = field(default_factory=dict)
    rows: Arrays = field(default_factory=dict)
    keep: Arrays = field(default_factory=dict)
    metrics: Mapping[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Models:
    """The users' own models.

    Parameters
    ----------
    whole : one model for all (P,), or one a user (users, P); with `heads` the body of all.
    heads : each user's own head over that body.
    picked : `whole` are some models (K, P), of which each user has the one of this number.
    metrics : what else is to be said of each user.
    """

    whole: Floats32
    heads: Floats32 | None = None
    picked: Ints | None = None
    metrics: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    spec: ClassVar[Mapping[str, Any] | None] = None  # of a combination (combined.py), as files say

    def outputs(self, network: Network, data: Examples, alone: bool) -> Tensor:
        """The outputs for the users' samples; `alone`: each user's are computed by themselves."""
        if alone:
            return outputs_of_each(network, self.each(len(data)), data)
        if self.heads is not None:
            return outputs_of_heads(network, self.whole, self.heads, data)
        if self.picked is not None:
            return outputs_of_picked(network, self.whole, self.picked, data)
        return outputs_of_models(network, self.whole, data)

    def each(self, users: int) -> Iterator[Array]:
        """Each user's whole model, one after the other."""
        for user in range(users):
            if self.picked is not None:
                yield self.whole[self.picked[user]]
            elif self.heads is not None:
                yield np.concatenate([self.whole, self.heads[user]])
            else:
                yield self.whole if self.whole.ndim == 1 else self.whole[user]


def named(parameters: list[NDArray[Any]], config: Mapping[str, Any]) -> Got:
    """Flower's list of parameters under the names that its config gives them."""
    names = [name for name in str(config.get("names", "model")).split(",") if name]
    if len(names) != len(parameters):
        raise ConfigError(f"{len(parameters)} parameters came, names={','.join(names)}.")
    arrays, by_user = dict(zip(names, parameters, strict=True)), str(config.get("rows", ""))
    rows = {name: arrays.pop(name) for name in by_user.split(",") if name in arrays}
    return Got(arrays, rows, config)


def averages(metrics: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    """Numbers of each user as one number: the mean over all samples, which are counted apart."""
    weights = metrics["num-examples"]
    if not np.any(weights):  # nobody has a sample: all users count
        weights = np.ones(len(weights))
    others = ((name, values) for name, values in metrics.items() if name != "num-examples")
    return {name: float(np.average(values, weights=weights)) for name, values in others}


def report(scores: Scores) -> dict[str, NDArray[Any]]:
    """Scores as numbers of each user; those without test samples have no loss."""
    loss = np.divide(scores.loss, scores.n, out=np.zeros(len(scores.n)), where=scores.n > 0)
    return {**scores.counts, "loss": loss, "num-examples": scores.n}


class FlowerClient(NumPyClient):
    """Flower's doors to a client, for whoever runs it without a node of Corsage's."""

    states: list[Arrays]

    def respond(self, got: Got) -> Sent:
        """A training message."""
        raise NotImplementedError

    def judge(self, got: Got) -> Mapping[str, NDArray[Any]]:
        """An evaluation message."""
        raise NotImplementedError

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Flower's door to `respond`.

        `config["names"]` names the parameters, with commas, and `config["rows"]` those that have
        one row a user. What the users keep is remembered by this object. Flower takes a number a
        metric: of several users it is their mean, weighted by samples.
        """
        sent = self.respond(named(parameters, config))
        if sent.keep:
            self.remember(sent.keep)
        examples = int(np.sum(sent.metrics["num-examples"]))
        return list({**sent.mean, **sent.rows}.values()), examples, averages(sent.metrics)

    def evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Flower's door to `judge`; as with `fit`."""
        metrics = self.judge(named(parameters, config))
        numbers = averages(metrics)
        return numbers["loss"], int(np.sum(metrics["num-examples"])), numbers

    def remember(self, kept: Arrays) -> None:
        """Hold what the users keep, as a node would between two rounds."""
        self.states = [{n: rows[i] for n, rows in kept.items()} for i in range(len(self.states))]
