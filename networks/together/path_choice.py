"""The path that trains a model: a rule by what the model is made of, the same on every machine.

Several users at once save what a call of torch costs, and need memory for all of them: beyond the
processor's cache they lose more than that. So as many are trained together as fit, by the model's
parameters and by what a step keeps for its backward pass. `python -m corsage.benchmarks paths`
measures all paths, and what the rule loses against the quickest.

A path is taken only where its gradients are those of plain autograd, user by user.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from corsage.core.configuration.key_groups import ModelKeys, TrainKeys
from corsage.core.errors import ModelError
from corsage.core.seeding import generator
from corsage.core.training_paths import AUTO, LAYERS, PATHS, TOGETHER_USERS, Choice, Path
from corsage.networks.batches import Examples
from corsage.networks.build import build_network, refusing, seeded
from corsage.networks.gradients import AutogradLosses, UserLosses, copy_statistics, training
from corsage.networks.inspection import running
from corsage.networks.network import NETWORK_LOCK, Block, Network
from corsage.networks.together.traced import TracedLosses
from corsage.networks.together.users import Untraceable

PARAMETERS, ACTIVATIONS = 3_500_000, 18_000_000
"""Numbers of all users who are trained together, beyond which the loop over users is as quick."""
GAINING_USERS = 3
"""Users from whom on it pays: one alone takes 1.3 to 1.9 times as long as in the loop, two 1.1."""
FEW_SAMPLES, MANY_SAMPLES, TRIED_POINTS, TRIED_SAMPLES = 2, 11, 8, 4
"""Samples of users whose gradients are compared, a batch that is filled up, and long ones, as long
as the run's: a forward may do something else with either. The points at which they are compared.
And samples on which activations are counted."""


@lru_cache(maxsize=8)
def choose_path(
    keys: ModelKeys,
    shape: tuple[int, ...],
    num_classes: int,
    seed: int,
    train: TrainKeys,
    users: int = MANY_SAMPLES,
) -> Choice:
    """The path on which a model of so many users is trained: as its key says, or by the rule."""
    if keys.training_path != AUTO:
        network_on_its_path(keys, shape, num_classes, seed, train.device)
        return Choice(keys.training_path, "")
    network = build_network(keys, shape, num_classes, seed, train.device)
    with NETWORK_LOCK, torch.random.fork_rng(devices=[]):
        return choose(network, shape, num_classes, train, users)


@lru_cache(maxsize=8)
def network_on_its_path(
    keys: ModelKeys, shape: tuple[int, ...], num_classes: int, seed: int, device: str = "cpu"
) -> Network:
    """The network of a configuration for training; ModelError if it cannot take the keys' path."""
    network = build_network(keys, shape, num_classes, seed, device)
    with seeded(seed), refusing(keys):
        check_path(network, keys, shape, num_classes)
    return network


def choose(
    network: Network,
    shape: tuple[int, ...],
    num_classes: int,
    keys: TrainKeys,
    users: int = MANY_SAMPLES,
) -> Choice:
    """The path of a network that was built for none, which is left as it was."""
    if network.stackable:
        return Choice(LAYERS, "it is a chain of plain layers")
    last, size = network.takes_channels_last, network.whole.stop
    with putting_back(network):
        kept = activations(network, shape) * max(keys.batch_size, 1)
        most = max((n for n in TOGETHER_USERS if fits(n, size, kept)), default=0)
        facts = f"{size:,} parameters, {kept:,} numbers kept in a step"
        obstacle = "the model is large" if users >= GAINING_USERS else "they are few"
        if most and users >= GAINING_USERS:
            obstacle = untraceable(network, shape, num_classes, keys.batch_size)
    if obstacle:
        return Choice(Path(0, last).name, f"{facts}; users one by one: {obstacle}")
    return Choice(Path(most, last).name, facts)


def fits(users: int, parameters: int, kept: int) -> bool:
    """Tell whether so many users are trained together in the cache."""
    return users * parameters <= PARAMETERS and users * kept <= ACTIVATIONS


@contextmanager
def putting_back(network: Network) -> Iterator[None]:
    """Buffers get back what was in them; those that did not move stay untouched."""
    before = [b.clone() for b in network.module.buffers()]
    yield
    for buffer, values in zip(network.module.buffers(), before, strict=True):
        if not torch.equal(buffer, values):
            buffer.copy_(values)


def activations(network: Network, shape: tuple[int, ...]) -> int:
    """Numbers that a training pass keeps of a sample for its backward pass."""
    x = drawn(network, (TRIED_SAMPLES, *shape), generator(0, "training path"))
    own = {p.untyped_storage().data_ptr() for p in network.module.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if (place := tensor.untyped_storage().data_ptr()) not in own:
            kept[place] = tensor
        return tensor

    network.activate(network.whole)
    hooks = saved_tensors_hooks(keep, lambda tensor: tensor)
    with running(network, True), torch.enable_grad(), hooks:
        network.forward(x.to(network.device))
    return sum(t.untyped_storage().nbytes() for t in kept.values()) // (4 * TRIED_SAMPLES)


def drawn(network: Network, shape: tuple[int, ...], rng: np.random.Generator) -> Tensor:
    """Random samples, of the type that the network takes."""
    if network.tokens:
        return torch.from_numpy(rng.integers(0, network.tokens, shape))
    return torch.from_numpy(rng.random(shape, np.float32))


def examples(
    network: Network, shape: tuple[int, ...], num_classes: int, sizes: list[int]
) -> Examples:
    """Random samples of some users."""
    rng, n = generator(0, "training path"), sum(sizes)
    x = drawn(network, (n, *shape), rng)
    labels = rng.integers(0, num_classes, n) if num_classes else rng.random(n, np.float32)
    return Examples(x, torch.from_numpy(labels), np.array(sizes, np.int64))


def untraceable(
    network: Network, shape: tuple[int, ...], num_classes: int, batch: int = MANY_SAMPLES
) -> str:
    """The obstacle to training users together, in words; nothing if it is exact.

    `batch`: how many samples a step has.
    """
    if network.stochastic:
        return "it draws random numbers in training"
    many = max(batch, MANY_SAMPLES)
    try:
        data = examples(network, shape, num_classes, [many, FEW_SAMPLES, many])
        data = replace(data, x=data.x.to(network.device), y=data.y.to(network.device))
        return differing(network, data)
    except Untraceable as why:
        return str(why)
    except Exception as error:  # its forward may do anything with what it is given
        return f"its forward takes nothing but one user's tensors ({type(error).__name__})"


def differing(network: Network, data: Examples) -> str:
    """The difference between users' gradients together and alone, in words; none if there is none.

    A ReLU whose input is 0 up to rounding may pass a gradient in one of them and not in the other:
    so what differs has to differ at each of several points.
    """
    orders = [[[np.arange(n)] for n in data.sizes]]
    joint = TracedLosses(network, data, orders, range(len(data)))
    alone = [AutogradLosses(network, data, orders, [u]) for u in joint.users]
    found = [(row, block) for row in range(len(alone)) for block in network.blocks]
    for point in range(TRIED_POINTS):
        theta = noisy(network, joint.rows(network.initial), point)
        before = [b.clone() for b in network.module.buffers()]
        with training(network):
            together = gradient(joint, theta)
            moved = zip(before, network.module.buffers(), strict=True)
            if any(not torch.equal(a, b) for a, b in moved):
                return "it keeps statistics of what it saw"
            wanted = [gradient(own, theta[i : i + 1])[0] for i, own in enumerate(alone)]
        found = [(i, b) for i, b in found if not near(together[i], wanted[i], b, network.blocks)]
        if not found:
            return ""
    _, block = found[0]
    return f"{'the gradient of ' * block.trained}{block.name} would be another"


def near(found: Tensor, wanted: Tensor, block: Block, blocks: Sequence[Block]) -> bool:
    """Tell whether a block's gradient is the wanted one, or its state, up to rounding.

    A bias before BatchNorm has a gradient of 0, and the others' rounding in it.
    """
    a, b = found[block.where], wanted[block.where]
    largest = max(float(wanted[one.where].abs().max()) for one in blocks if one.trained)
    most = 1e-5 + 1e-3 * float(b.abs().max()) + 2e-4 * largest * block.trained
    return torch.allclose(a, b, rtol=1e-3, atol=most)


def noisy(network: Network, theta: Tensor, point: int) -> Tensor:
    """Models (users, P) with noise on what is trained."""
    noise = generator(0, "training path", point).standard_normal(theta.shape, np.float32)
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
