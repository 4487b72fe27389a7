"""All training paths of a model by the stopwatch, and what the rule loses against the quickest.

The built-in models, and those of `own-models`. Beside them: how long the gradients of ten users
take by torch.func (vmap over functional_call), as a multiple of the kernels of `networks/together`.

    python -m corsage.benchmarks paths
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from corsage.benchmarks.measure import Measure
from corsage.benchmarks.own_models import CASES, COLOUR, GREY, PAPER, PFLLIB
from corsage.benchmarks.turns import one_thread
from corsage.core.configuration.key_groups import ModelKeys, TrainKeys
from corsage.core.training_paths import LAYERS, PATHS
from corsage.networks.build import build_network
from corsage.networks.criterion import output_of
from corsage.networks.gradients import training
from corsage.networks.local_training import train_models
from corsage.networks.network import Network
from corsage.networks.together.path_choice import choose, examples, untraceable
from corsage.networks.together.traced import TracedLosses

MOST = 1.15
"""Times the quickest path's seconds that the rule's may take."""
STEPS, TURNS, CLASSES, USERS = 10, 4, 10, 10
LONG, MOST_NUMBERS = 0.1, 20_000_000
"""Seconds of a step, and numbers of all users, beyond which several users are not tried."""


@dataclass(frozen=True)
class Case:
    """A model and the steps that it is trained by."""

    name: str
    make: Callable[[], Network]
    shape: tuple[int, ...]
    keys: TrainKeys


def cases() -> Iterator[Case]:
    """The built-in models, then those that people bring."""
    built_in: list[tuple[str, tuple[int, ...], TrainKeys]] = [
        ("mlp", GREY, PAPER),
        ("lenet", GREY, PAPER),
        ("cnn", GREY, PAPER),
        ("cnn", GREY, PFLLIB),
        ("cnn-cifar10", COLOUR, PAPER),
        ("cnn-cifar100", COLOUR, PAPER),
        ("lstm", (25, 300), PAPER),
    ]
    for model, shape, keys in built_in:
        make = partial(build_network, ModelKeys(model=model), shape, CLASSES, 0)
        yield Case(model, make, shape, keys)
    own = {case.name: case for case in CASES if case.loss is None}
    for case in own.values():
        make = partial(Network, case.make(), "head", torch.rand(3, *case.shape))
        yield Case(case.name, make, case.shape, case.keys)


def seconds(network: Network, case: Case, users: int) -> float:
    """CPU seconds of a step of one user."""
    batch = case.keys.batch_size
    data = examples(network, case.shape, CLASSES, [batch] * users)
    orders = [[np.arange(batch)] * STEPS] * users
    begin = time.process_time()
    train_models(network, network.initial, data, orders, case.keys)
    return (time.process_time() - begin) / (users * STEPS)


def tried(case: Case, network: Network) -> dict[str, float]:
    """The seconds of all paths that the model can take, by turns; the first turn warms up."""
    alone = seconds(network.along("loop"), case, 1)
    names = [name for name, path in PATHS.items() if not path.users]
    if network.chains:
        names.append(LAYERS)
    elif alone < LONG and not untraceable(network, case.shape, CLASSES, case.keys.batch_size):
        small = [p for p in PATHS.values() if p.users * network.whole.stop <= MOST_NUMBERS]
        names += [path.name for path in small if path.users]
    if not network.takes_channels_last:
        names = [name for name in names if name == LAYERS or not PATHS[name].channels_last]
    found = {name: float("inf") for name in names}
    for turn in range(TURNS + 1):
        for name in names:
            took = seconds(network.along(name), case, USERS)
            found[name] = min(found[name], took) if turn else found[name]
    return found


class Functional(TracedLosses):
    """The same gradients by torch.func: vmap of the module's own forward."""

    def inputs(self, rows: Tensor, step: int, stream: int, first: int) -> Any:
        """The batches of all users."""
        return self.data.x[rows.flatten()].view(*rows.shape, *self.data.x.shape[1:])

    def gradient(self, theta: Tensor, step: int, out: Tensor, *rest: Any, **more: Any) -> None:
        """One forward and backward pass of all users."""
        x, labels, share = self.batch(step, 0)
        blocks, module = self.network.blocks, self.network.module
        parts = {b.name: theta[:, b.where].view(-1, *b.shape).to(b.dtype) for b in blocks}
        parts = {b.name: parts[b.name].detach().requires_grad_(b.trained) for b in blocks}
        with torch.enable_grad():
            h = vmap(lambda own, inputs: output_of(functional_call(module, own, (inputs,))))(
                parts, x
            )
        slope = self.network.criterion.slope(h.detach(), labels)
        torch.autograd.backward(h, slope.mul_(share))
        for b in blocks:
            if (found := parts[b.name].grad) is not None:
                out[:, b.where] = found.flatten(1)


def functional(case: Case, network: Network) -> str:
    """The seconds of torch.func as a multiple of the kernels', on the network's path."""
    batch, best = case.keys.batch_size, dict[type[TracedLosses], float]()
    data = examples(network, case.shape, CLASSES, [batch] * USERS)
    for kind in (TracedLosses, Functional) * TURNS:
        losses = kind(network, data, [[[np.arange(batch)] * STEPS] * USERS], range(USERS))
        theta = losses.rows(network.initial)
        out = torch.zeros_like(theta)
        with training(network):
            begin = time.process_time()
            try:
                for step in range(STEPS):
                    losses.gradient(theta, step, out)
            except RuntimeError:  # torch has no batching rule for a function of it
                return "torch.func: cannot"
            took = time.process_time() - begin
        best[kind] = min(best.get(kind, took), took)
    return f"torch.func {best[Functional] / best[TracedLosses]:.2f} times the kernels"


def run() -> Iterator[Measure]:
    """Measure what the rule loses, model by model, and the times of all paths beside it."""
    with one_thread():
        for case in cases():
            torch.manual_seed(0)
            network = case.make()
            chosen = choose(network, case.shape, CLASSES, case.keys).name
            times = tried(case, network)
            best = min(times, key=lambda name: times[name])
            order = sorted(times, key=lambda name: times[name])
            words = ", ".join(f"{name} {1e3 * times[name]:.2f}" for name in order)
            words = f"{chosen}; CPU ms a step and user: {words}"
            if chosen.startswith("together"):
                words += f"; {functional(case, network.along(chosen))}"
            name = f"{case.name}, batch {case.keys.batch_size}"
            yield Measure(name, times[chosen] / times[best], MOST, "of the quickest", words)
