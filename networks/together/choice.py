"""Which path trains a model: measured on the model at hand, once a run (`core/paths`).

A path is tried only where its gradients are those of plain autograd, user by user.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

from corsage.core.errors import ModelError
from corsage.core.groups import ModelKeys, TrainKeys
from corsage.core.paths import AUTO, LAYERS, PATHS, TOGETHER, Path
from corsage.core.seeding import generator
from corsage.networks.batches import Examples
from corsage.networks.network import Network
from corsage.networks.together.gradients import (
    AutogradLosses,
    UserLosses,
    copy_statistics,
    training,
)
from corsage.networks.together.parts import train_models
from corsage.networks.together.traced import TracedLosses
from corsage.networks.together.users import Untraceable

LONG = 0.1
"""Seconds of a step beyond which several users together have nothing to gain: it is arithmetic."""
MOST_NUMBERS = 10_000_000
"""Parameters of all users together beyond which they gain nothing, and only take memory."""
ENOUGH, REPEATS, STEPS = 0.2, 5, 2
FEW, MANY = 2, 11
"""Samples of users whose gradients are compared: a batch that is filled up, and long ones, as long
as the run's: a forward may do something else with either."""
GAIN = 0.97
"""Others than the plain loop must be so much quicker: a few steps are no fine measurement."""


@dataclass(frozen=True)
class Choice:
    """A path by its name, and what spoke for it."""

    name: str
    why: str


def choose(network: Network, shape: tuple[int, ...], num_classes: int, keys: TrainKeys) -> Choice:
    """The quickest path of a network that was built for none, which is left as it was."""
    if network.stackable:
        return Choice(LAYERS, "it is a chain of plain layers")
    buffers = [b.clone() for b in network.module.buffers()]
    found = measured(network, shape, num_classes, keys)
    for buffer, before in zip(network.module.buffers(), buffers, strict=True):
        if not torch.equal(buffer, before):  # else it stays untouched
            buffer.copy_(before)
    return found


def measured(network: Network, shape: tuple[int, ...], num_classes: int, keys: TrainKeys) -> Choice:
    """The quickest of the paths that are exact."""
    tried: dict[str, float] = {}
    loops = [Path(0, last) for last in (False, True) if not last or network.takes_channels_last]
    for path in loops:
        tried[path.name] = seconds(network, path, shape, num_classes, keys)
    most = 1 if min(tried.values()) > LONG else max(TOGETHER)
    together = [p for p in PATHS.values() if 0 < p.users <= most and fits(p, network, shape)]
    obstacle = "the model is large"
    if together:
        obstacle = untraceable(network, shape, num_classes, keys.batch_size)
    for path in together if not obstacle else ():
        tried[path.name] = seconds(network, path, shape, num_classes, keys)
    return Choice(quickest(tried), said(tried, obstacle))


def fits(path: Path, network: Network, shape: tuple[int, ...]) -> bool:
    """Whether a path for several users is worth a try with this model and its inputs."""
    small = path.users * network.whole.stop <= MOST_NUMBERS
    return small and (len(shape) == 3 or not path.channels_last)


def quickest(tried: dict[str, float]) -> str:
    """The name of the least time; users together must be worth it."""
    return min(tried, key=lambda name: tried[name] / (1.0 if name.startswith("loop") else GAIN))


def said(tried: dict[str, float], obstacle: str) -> str:
    """The times in order, in words, and why users are not trained together if they cannot be."""
    order = sorted(tried, key=lambda name: tried[name])
    times = ", ".join(f"{name} {1e3 * tried[name]:.2f}" for name in order[:4])
    words = f"CPU ms a step and user: {times}"
    return f"{words}; users one by one: {obstacle}" if obstacle else words


@contextmanager
def taking(network: Network, path: Path) -> Iterator[None]:
    """Another path for a while."""
    before = network.path, network.channels_last
    network.path, network.channels_last = path, path.channels_last and network.takes_channels_last
    try:
        yield
    finally:
        network.path, network.channels_last = before


def examples(shape: tuple[int, ...], num_classes: int, sizes: list[int]) -> Examples:
    """Random samples of some users."""
    rng, n = generator(0, "training path"), sum(sizes)
    x = torch.from_numpy(rng.random((n, *shape), np.float32))
    labels = rng.integers(0, num_classes, n) if num_classes else rng.random(n, np.float32)
    return Examples(x, torch.from_numpy(labels), np.array(sizes, np.int64))


def seconds(
    network: Network, path: Path, shape: tuple[int, ...], num_classes: int, keys: TrainKeys
) -> float:
    """CPU seconds of a step of one user on a path, after a first one."""
    users, batch = max(path.users, 1), max(keys.batch_size, 2)  # BatchNorm takes no batch of one
    data = examples(shape, num_classes, [batch] * users)
    data = data.over(data.x.to(network.device))
    orders, best, spent = [[np.arange(batch)] * STEPS] * users, float("inf"), 0.0
    with taking(network, path):
        for number in range(1 + REPEATS):
            begin = time.process_time()
            train_models(network, network.initial, data, orders, keys)
            took = time.process_time() - begin
            best, spent = min(best, took), spent + took
            if spent > ENOUGH and (number or took > ENOUGH):
                break
    return best / (users * STEPS)


def untraceable(
    network: Network, shape: tuple[int, ...], num_classes: int, batch: int = MANY
) -> str:
    """What stands against training users together, in words; nothing if it is exact.

    `batch`: how many samples a step has.
    """
    if network.stochastic:
        return "it draws random numbers in training"
    many = max(batch, MANY)
    try:
        data = examples(shape, num_classes, [many, FEW, many])
        data = replace(data, x=data.x.to(network.device), y=data.y.to(network.device))
        return differing(network, data)
    except Untraceable as why:
        return str(why)
    except Exception as error:  # its forward may do anything with what it is given
        return f"its forward takes nothing but one user's tensors ({type(error).__name__})"


def differing(network: Network, data: Examples) -> str:
    """What differs between users' gradients together and alone, at points of their own."""
    orders = [[[np.arange(n)] for n in data.sizes]]
    joint = TracedLosses(network, data, orders, range(len(data)))
    theta = noisy(network, joint.rows(network.initial))
    before = [b.clone() for b in network.module.buffers()]
    with training(network):
        found = gradient(joint, theta)
        moved = zip(before, network.module.buffers(), strict=True)
        if any(not torch.equal(a, b) for a, b in moved):
            return "it keeps statistics of what it saw"
        for row, u in enumerate(joint.users):
            alone = AutogradLosses(network, data, orders, [u])
            wanted = gradient(alone, theta[row : row + 1])[0]
            for block in network.blocks:
                a, b = found[row, block.where], wanted[block.where]
                if not torch.allclose(a, b, rtol=1e-3, atol=1e-5 + 1e-3 * float(b.abs().max())):
                    kind = "the gradient of " * block.trained
                    return f"{kind}{block.name} would be another"
    return ""


def noisy(network: Network, theta: torch.Tensor) -> torch.Tensor:
    """Models (users, P) with noise on what is trained."""
    noise = generator(0, "training path").standard_normal(theta.shape, np.float32)
    for block in network.blocks:
        if block.trained:
            theta[:, block.where] += 0.02 * torch.from_numpy(noise[:, block.where]).to(theta)
    return theta


def gradient(losses: UserLosses, theta: torch.Tensor) -> torch.Tensor:
    """Those of the first step; in the place of what moves without one, what it came to."""
    out, theta = torch.zeros_like(theta), theta.clone()
    losses.gradient(theta, 0, out)
    copy_statistics(losses.network, theta, out)
    return out


def check_path(network: Network, keys: ModelKeys, shape: tuple[int, ...], classes: int) -> None:
    """Refuse a path that a network cannot take, in one line."""
    name = keys.training_path
    if name == AUTO or (name == LAYERS and network.stackable):
        return
    why = "it is no chain of plain layers" if name == LAYERS else ""
    path = PATHS.get(name)
    if path and path.users:
        why = untraceable(network, shape, classes)
    elif path and path.channels_last and not network.takes_channels_last:
        why = "it takes no images with their channels last"
    if why:
        raise ModelError(f"training-path={name}: not with this model: {why}; auto finds another.")
