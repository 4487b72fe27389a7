"""The training loop that all algorithms share: SGD on one part of one user's model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corsage.core.arrays import Ints
from corsage.core.errors import ModelError
from corsage.core.groups import TrainKeys
from corsage.networks.batches import Loss, Order
from corsage.networks.network import Network
from corsage.networks.pull import Drift, Pull

Adjust = Callable[[Tensor, Tensor], None]
Types = tuple[torch.dtype, torch.dtype]
SINGLE: Types = (torch.float32, torch.float32)


def batches(rng: np.random.Generator, n: int, epochs: int, batch_size: int) -> list[Ints]:
    """The steps of some epochs as row numbers: a permutation each, the last short batch kept."""
    steps: list[Ints] = []
    for _ in range(epochs):
        order = rng.permutation(n)
        steps.extend(order[i : i + batch_size] for i in range(0, n, batch_size))
    return steps


def to_tensors(
    x: NDArray[Any],
    y: NDArray[Any],
    shift: float,
    scale: float,
    device: str | torch.device = "cpu",
    types: Types = SINGLE,
) -> tuple[Tensor, Tensor]:
    """Raw arrays (bytes or floats) as `(x - shift) * scale`, and labels: classes are int64.

    `types` are those of the inputs, and of labels that are numbers. Torch models are float32, and
    so are both by default.
    """
    inputs = torch.from_numpy(np.require(x, requirements=["C", "W"]))
    inputs = inputs.to(device, types[0], copy=True)
    labels = torch.from_numpy(np.array(y, np.float64 if y.dtype.kind == "f" else np.int64))
    labels = labels.to(device, types[1] if labels.is_floating_point() else torch.int64)
    return inputs.sub_(shift).mul_(scale), labels


def sgd(
    network: Network,
    data: tuple[Tensor, Tensor],
    order: Order,
    part: slice,
    keys: TrainKeys,
    adjust: Adjust | None = None,
    *,
    cached: bool = False,
    loss: Loss | None = None,
) -> None:
    """Train one part of the network in place by the steps of `order`; the rest is frozen.

    The arithmetic of torch.optim.SGD on the flat slice: g += weight_decay * theta (weights only),
    m = momentum * m + g from m = 0, theta -= lr * m. `adjust(g, theta)` changes the loss'
    gradient in place before that. With `cached`, the data are features and only the head is run;
    `loss` takes the place of the network's criterion.
    """
    if not order or not any(b.trained for b in network.blocks_of(part)):
        return
    network.activate(part)
    network.train()
    theta, grad = network.flat[part], network.grad[part]
    weights = network.vector.weights_of(part) if keys.decay else []
    momentum = torch.zeros_like(theta) if keys.momentum else None
    of = batch_loss(network, cached, loss)
    x, y = data
    rows = torch.from_numpy(np.concatenate(order)).to(x.device)
    x = x if cached else network.arrange(x)
    with frozen(network, part), seeded(network, order):
        for batch in torch.split(rows, [len(b) for b in order]):
            grad.zero_()
            torch.autograd.backward(of(x[batch], y[batch]))
            with torch.no_grad():
                if adjust is not None:
                    adjust(grad, theta)
                for where in weights:
                    grad[where].add_(theta[where], alpha=keys.decay)
                step = grad if momentum is None else momentum.mul_(keys.momentum).add_(grad)
                theta.add_(step, alpha=-keys.lr)


def batch_loss(network: Network, cached: bool, loss: Loss | None) -> Callable[..., Tensor]:
    """The loss of a batch (inputs, labels), or with `cached` of (features, labels)."""
    if loss is None:
        function, criterion = network.logits if cached else network.forward, network.criterion.mean
        return lambda x, y: criterion(function(x), y)
    if not network.split_exact:
        raise ModelError(f"a loss of features needs a model with a body and a head: {network.why}")

    def of_features(x: Tensor, y: Tensor) -> Tensor:
        features = x if cached else network.features(x)
        return loss(features, network.logits(features), y)

    return of_features


def pulled_sgd(
    network: Network,
    data: tuple[Tensor, Tensor],
    order: Order,
    part: slice,
    keys: TrainKeys,
    pull: Pull,
    *,
    cached: bool = False,
    loss: Loss | None = None,
) -> None:
    """`sgd` on one user's data under a pull, `pull.pick([u])`; its centre moves if it follows."""
    size = part.stop - part.start
    drift = pull.drift(slice(0, size), [size], 1, 0.0, network.flat)
    add = trained_only(network, part, drift)
    every = pull.every or max(len(order), 1)
    for start in range(0, len(order), every):
        piece = order[start : start + every]
        sgd(network, data, piece, part, keys, add, cached=cached, loss=loss)
        if pull.every and len(piece) == every:
            drift.follow(network.flat[part].unsqueeze(0))
    if pull.every and drift.centre is not None:
        pull.centre[0] = drift.centre[0].cpu().numpy()


def trained_only(network: Network, part: slice, drift: Drift) -> Adjust:
    """A drift as `sgd` takes it: running statistics and frozen parameters are not pulled."""
    stay = [b.where for b in network.blocks_of(part) if not b.trained]

    def add(grad: Tensor, theta: Tensor) -> None:
        drift.add(grad.unsqueeze(0), theta.unsqueeze(0))
        for where in stay:
            grad[where.start - part.start : where.stop - part.start] = 0.0

    return add


@contextmanager
def frozen(network: Network, part: slice) -> Iterator[None]:
    """Keep the running statistics (BatchNorm) of the frozen part as they were."""
    before = network.flat.clone() if network.has_buffers else None
    yield
    if before is not None:
        before[part] = network.flat[part]
        network.flat.copy_(before)


@contextmanager
def seeded(network: Network, order: Order) -> Iterator[None]:
    """Dropout draws from a generator keyed by the batches, hence by seed, round and user."""
    if not network.stochastic:
        yield
        return
    words = b"".join(np.asarray(batch, np.int64).tobytes() for batch in order)
    gpus = [network.device] if network.device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        torch.manual_seed(int.from_bytes(blake2b(words, digest_size=7).digest(), "little"))
        yield
