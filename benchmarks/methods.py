"""CPU seconds of a user-round of every method, as a share of a bare loop of as many SGD steps.

A method may be slow because it takes many steps, or because what it does around them is dear. Only
the second is the house's fault. So the bare loop takes as many steps as the client counts gradients
(APFL's two models: two a batch; Per-FedAvg's Hessian-vector products: four). All else is the
method's own expense: IFCA's losses of all models, SCAFFOLD's variates, proximal terms, reading what
the user kept, making tensors of its data.

Fashion-MNIST, ten users on a node with two shards and 500 training images each, batches of 10,
momentum .5, weight decay. Measured is the client's `respond` in rounds that the strategy itself
runs, so users have what they keep, clusters and variates as in any run. The families' methods take
other steps, or none; FedRep has its rows in `pfllib`.

    python -m corsage.benchmarks methods
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any
from unittest import mock

import numpy as np
from torch import nn
from torch.nn import functional as F

from corsage.benchmarks import bare_loop
from corsage.benchmarks.measure import Measure
from corsage.benchmarks.turns import Turns, take, training_data, unevaluated
from corsage.clients import client_class
from corsage.clients.parts.contract import Sent
from corsage.core.configuration.key_groups import ModelKeys, TrainKeys
from corsage.core.measures import GRADIENT_STEPS
from corsage.core.registry import ALGORITHMS
from corsage.experiments.runner import say
from corsage.networks.batches import Examples

USERS, TURNS, LIMIT = 10, 3, 1.2
PROBLEM: dict[str, Any] = {
    "dataset": "fashion-mnist",
    "partition": "shards",
    "classes-per-user": 2,
    "num-users": USERS,
    "mean-samples": 700,
    "test-fraction": 2 / 7,
    "fraction-train": 1.0,
    "batch-size": 10,
    "fine-tune-epochs": 0,
}
MODELS = {"MLP": ModelKeys(model="mlp"), "LeNet-5": ModelKeys(model="lenet")}
# Variants that take other steps than the default.
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "apfl": {"adaptive": {"apfl-adaptive-alpha": True}},
    "perfedavg": {name: {"perfedavg-variant": name} for name in ("hf", "fo")},
}


@dataclass
class Responses:
    """Seconds that a client takes for its training messages, and the gradients that it counts."""

    seconds: float = 0.0
    steps: int = 0

    def timed(self, plain: Callable[..., Sent]) -> Callable[..., Sent]:
        """A client's `respond`, watched."""

        @wraps(plain)
        def respond(*arguments: Any) -> Sent:
            begin = time.process_time()
            sent = plain(*arguments)
            self.seconds += time.process_time() - begin
            self.steps = int(np.sum(sent.metrics[GRADIENT_STEPS.name]))
            return sent

        return respond


def bare(model: nn.Sequential, keys: TrainKeys, data: Examples, steps: int) -> None:
    """So many SGD steps on one built model for each user, through its data again and again."""
    for u in range(USERS):
        xs, ys = data.user(u)
        opt, left = bare_loop.optimiser(model, list(model.parameters()), keys), steps
        while left > 0:
            order = bare_loop.epoch(len(ys), keys.batch_size)
            for rows in order[:left]:
                bare_loop.step(opt, F.cross_entropy(model(xs[rows]), ys[rows]))
            left -= len(order)


def measure(name: str, model: str, variant: str = "") -> Measure:
    """One method and model."""
    title = f"{name}{f' ({variant})' if variant else ''}, {model}"
    own = VARIANTS[name][variant] if variant else {}
    config = unevaluated({**PROBLEM, "model": MODELS[model].model, "strategy": name, **own})
    data, watch, cls = training_data(config, USERS), Responses(), client_class(name)
    plain = bare_loop.plain_model(config.model)
    counted = []

    def turn() -> None:
        counted.append(watch.steps // USERS)
        bare(plain, config.train, data, counted[-1])

    turns = Turns(TURNS, turn, lambda: watch.seconds)
    with mock.patch.object(cls, "respond", watch.timed(cls.respond)):
        take(turns, config)
    house, beside = (1e3 * seconds / USERS for seconds in turns.seconds)
    steps = "/".join(str(n) for n in dict.fromkeys(counted))
    words = f"{steps} steps, CPU ms: bare loop {beside:.1f}, Corsage {house:.1f}"
    return Measure(title, turns.ratio, LIMIT, "of bare", words)


def run(names: list[str] | None = None, models: list[str] | None = None) -> Iterator[Measure]:
    """All methods on both models."""
    plain = [name for name, one in ALGORITHMS.items() if not (one.family or one.of)]
    names = names or plain
    cases = [(name, variant) for name in names for variant in ("", *VARIANTS.get(name, {}))]
    for model in models or list(MODELS):
        say(f"{len(cases)} methods on {model}")
        yield from (measure(name, model, variant) for name, variant in cases)
