"""CPU seconds of a user-round of every method, as a share of a bare loop of as many SGD steps.

A method may be slow because it takes many steps, or because what it does around them is dear. Only
the second is the house's fault. So the steps that a method takes are counted as they happen: each
forward and backward pass of one user's model on a batch is one (APFL's two models: two a batch;
Per-FedAvg's Hessian-vector products: four; pFedMe: five), and the bare loop takes exactly as many.
All else is the method's own expense: IFCA's losses of all models, SCAFFOLD's variates, proximal
terms, reading what the user kept, making tensors of its data.

Fashion-MNIST, ten users on a node with two shards and 500 training images each, batches of 10,
momentum .5, weight decay. Measured is the client's `fit` in rounds that the strategy itself runs,
so users have what they keep, clusters and variates as in any run. The families' methods take other
steps, or none; FedRep has its rows in `user-round` and `pfllib`.

    python -m corsage.benchmarks methods
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import wraps
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from corsage.benchmarks import user_round
from corsage.benchmarks.measure import Measure
from corsage.benchmarks.turns import Turns, take, training_data, unevaluated
from corsage.clients import client_class
from corsage.core.configuration.config import Config
from corsage.core.configuration.key_groups import ModelKeys
from corsage.core.errors import CorsageError
from corsage.core.registry import ALGORITHMS
from corsage.experiments.runner import say
from corsage.networks.batches import Examples
from corsage.networks.gradients import AutogradLosses, UserLosses
from corsage.networks.together import stacked
from corsage.networks.together.stacked_gradients import StackedLosses

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
class Fits:
    """Seconds and steps of all users in the calls of `fit`, since `begin`."""

    seconds: float = 0.0
    steps: int = 0
    inside: bool = False
    stack: ExitStack = field(default_factory=ExitStack)

    def watch(self, cls: type[Any]) -> None:
        """Time a client's `fit`, and count the gradients that are taken in it.

        Users together go through `stacked.propagate`, one user alone through autograd's backward.
        """
        together, alone = stacked.propagate, torch.autograd.backward

        def propagate(layers: Any, first: int, h: Tensor, labels: Tensor, *rest: Any) -> None:
            self.steps += len(labels)
            together(layers, first, h, labels, *rest)

        def backward(*arguments: Any, **options: Any) -> None:
            self.steps += self.inside
            alone(*arguments, **options)

        patch = mock.patch.object
        for losses in (StackedLosses, AutogradLosses):
            self.stack.enter_context(patch(losses, "product", self._product(losses.product)))
        self.stack.enter_context(patch(stacked, "propagate", propagate))
        self.stack.enter_context(patch(torch.autograd, "backward", backward))
        self.stack.enter_context(patch(cls, "fit", self._timed(cls.fit)))

    def _product(self, plain: Callable[..., None]) -> Callable[..., None]:
        """A Hessian's product with a vector costs as much as two gradients."""

        def product(losses: UserLosses, theta: Tensor, v: Tensor, step: int, *rest: Any) -> None:
            self.steps += 2 * losses.active[step]
            plain(losses, theta, v, step, *rest)

        return product

    def _timed(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(plain)
        def fit(*arguments: Any) -> Any:
            self.steps, self.inside, begin = 0, True, time.process_time()
            try:
                return plain(*arguments)
            finally:
                self.seconds += time.process_time() - begin
                self.inside = False

        return fit


def bare(model: nn.Sequential, case: user_round.Case, data: Examples, steps: int) -> None:
    """So many SGD steps on one built model for each user, through its data again and again."""
    for u in range(USERS):
        xs, ys = data.user(u)
        opt, left = user_round.optimiser(case, model, list(model.parameters())), steps
        while left > 0:
            order = torch.randperm(len(ys)).split(case.keys.batch_size)  # type: ignore[no-untyped-call]
            for rows in order[:left]:
                user_round.step(model, opt, xs[rows], ys[rows])
            left -= len(order)


def measure(name: str, model: str, variant: str = "") -> Measure:
    """One method and model."""
    title = f"{name}{f' ({variant})' if variant else ''}, {model}"
    own = VARIANTS[name][variant] if variant else {}
    config = unevaluated({**PROBLEM, "model": MODELS[model].model, "strategy": name, **own})
    data, fits = training_data(config, USERS), Fits()
    loop, plain = bare_case(config, int(data.sizes[0])), user_round.plain_model(config.model)
    counted = []

    def turn() -> None:
        counted.append(fits.steps // USERS)
        bare(plain, loop, data, counted[-1])

    turns = Turns(TURNS, turn, lambda: fits.seconds)
    with fits.stack:
        fits.watch(client_class(name))
        take(turns, config)
    if not min(counted):
        raise CorsageError(f"methods: {name} took no step that could be counted.")
    house, beside = (1e3 * seconds / USERS for seconds in turns.seconds)
    steps = "/".join(str(n) for n in dict.fromkeys(counted))
    words = f"{steps} steps, CPU ms: bare loop {beside:.1f}, Corsage {house:.1f}"
    return Measure(title, turns.ratio, LIMIT, "of bare", words)


def bare_case(config: Config, samples: int) -> user_round.Case:
    """What the bare loop has to know."""
    return user_round.Case("", "fedavg", config.model, samples, config.train, "bare", LIMIT)


def run(names: list[str] | None = None, models: list[str] | None = None) -> Iterator[Measure]:
    """All methods on both models."""
    plain = [name for name, one in ALGORITHMS.items() if not (one.family or one.of)]
    names = names or plain
    cases = [(name, variant) for name in names for variant in ("", *VARIANTS.get(name, {}))]
    for model in models or list(MODELS):
        say(f"{len(cases)} methods on {model}")
        yield from (measure(name, model, variant) for name, variant in cases)
