"""The training loop that all algorithms share: SGD on one part of one user's model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corsage.core.arrays import Ints, PerChannel, along_channels
from corsage.core.configuration.key_groups import TrainKeys
from corsage.core.errors import ModelError
from corsage.core.registry import attached
from corsage.core.seeding import reseed
from corsage.networks.batches import Change, Loss, Mean, Order, on_device, steps_on
from corsage.networks.network import Network
from corsage.networks.proximal import Drift, Pull
from corsage.networks.rules import rule_of
from corsage.networks.vector import LARGE_MODEL

Adjust = Callable[[Tensor, Tensor], None]
Types = tuple[torch.dtype, torch.dtype]
SINGLE: Types = (torch.float32, torch.float32)
HALF_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
LARGEST_SCALE, SCALE_GROWTH = 2.0**16, 2000


def batches(
    rng: np.random.Generator, n: int, epochs: int, batch_size: int, join: bool = False
) -> list[Ints]:
    """The steps of some epochs as row numbers: a permutation each, the last short batch kept.

    With `join`, a last batch of one sample is part of the one before: BatchNorm needs two.
    """
    steps: list[Ints] = []
    cuts = [*[*range(0, n, batch_size)][: steps_of(n, batch_size, join)], n]
    for _ in range(epochs):
        order = rng.permutation(n)
        steps.extend(order[i:j] for i, j in pairwise(cuts))
    return steps


def steps_of(n: int, batch_size: int, join: bool = False) -> int:
    """The batches of an epoch of n samples."""
    alone = join and n > 1 and n % batch_size == (1 if batch_size > 1 else 0)
    return -(-n // batch_size) - int(alone)


def to_tensors(
    x: NDArray[Any],
    y: NDArray[Any],
    shift: PerChannel,
    scale: PerChannel,
    device: str | torch.device = "cpu",
    types: Types = SINGLE,
) -> tuple[Tensor, Tensor]:
    """Raw arrays (bytes or floats) as `(x - shift) * scale`, and labels: classes are int64.

    `types` are those of the inputs, and of labels that are numbers. Torch models are float32, and
    so are both by default. Inputs that are to be int64 are neither shifted nor scaled.
    """
    if whole := types[0] == torch.int64:
        x = attached("own models").whole_numbers(x)
    inputs = torch.from_numpy(np.require(x, requirements=["C", "W"]))
    inputs = on_device(inputs, device).to(types[0], copy=True)  # bytes are sent as such
    labels = torch.from_numpy(np.array(y, np.float64 if y.dtype.kind == "f" else np.int64))
    if labels.is_floating_point():
        labels = labels.to(types[1])
    labels = on_device(labels, device)
    if whole:
        return inputs, labels
    if isinstance(shift, float | int) and isinstance(scale, float | int):
        return inputs.sub_(shift).mul_(scale), labels
    each = (torch.from_numpy(along_channels(v)).to(inputs) for v in (shift, scale))
    return inputs.sub_(next(each)).mul_(next(each)), labels


@dataclass(frozen=True)
class StepLoss:
    """The loss of a step.

    Parameters
    ----------
    cached : the data are features, and only the head is run.
    loss, mean : of (features, outputs, labels), or of outputs and labels alone, in the place of
        the network's criterion.
    change : makes other inputs of (inputs, step).
    into_head : makes other features of those that go into the head, where there is a `loss`.
    """

    cached: bool = False
    loss: Loss | None = None
    mean: Mean | None = None
    change: Change | None = None
    into_head: Callable[[Tensor], Tensor] | None = None

    def later(self, first: int) -> StepLoss:
        """The same for steps that are counted from `first` on."""
        change = self.change
        if change is None or not first:
            return self
        return replace(self, change=lambda x, step: change(x, first + step))

    def of(self, network: Network) -> Callable[..., Tensor]:
        """The loss of a batch (inputs, labels), or with `cached` of (features, labels)."""
        loss, cached, into = self.loss, self.cached, self.into_head
        if loss is None:
            function = network.logits if cached else network.forward
            mean = self.mean or network.criterion.mean
            return lambda x, y: mean(function(x), y)
        if not network.split_exact:
            raise ModelError(
                f"a loss of features needs a model with a body and a head: {network.why}"
            )

        def of_features(x: Tensor, y: Tensor) -> Tensor:
            features = x if cached else network.features(x)
            return loss(features, network.logits(into(features) if into else features), y)

        return of_features


USUAL_LOSS = StepLoss()


def sgd(
    network: Network,
    data: tuple[Tensor, Tensor],
    order: Order,
    part: slice,
    keys: TrainKeys,
    adjust: Adjust | None = None,
    what: StepLoss = USUAL_LOSS,
) -> None:
    """Train one part of the network in place by the steps of `order`; the rest is frozen.

    The arithmetic of torch.optim on the flat slice (rules.py), which for SGD is
    g += weight_decay * theta (weights only), m = momentum * m + g from m = 0, theta -= lr * m.
    `adjust(g, theta)` adds to the loss' gradient in place before that. Of large models m is the
    only vector: the gradient is added to it where it is.
    """
    if not order or not any(b.trained for b in network.blocks_of(part)):
        return
    network.activate(part)
    network.train()
    theta, grad = network.flat[part], network.grad[part]
    weights, beta = network.vector.weights_of(part), 0.0
    if keys.plain and part.stop - part.start >= LARGE_MODEL:  # it is added to momentum in place
        keys, beta = replace(keys, momentum=0.0), keys.momentum
    rule = rule_of(theta.unsqueeze(0), weights, keys)
    of, half, change = what.of(network), HalfPrecision(keys, network.device), what.change
    x, y = data
    x = x if what.cached or change is not None else network.arrange(x)
    with frozen(network, part), seeded(network, order):
        for s, batch in enumerate(steps_on(order, x.device)):
            grad.mul_(beta) if s and beta else grad.zero_()
            inputs = x[batch] if change is None else change(x[batch], s)
            half.backward(of, inputs, y[batch], grad)
            with torch.no_grad():
                if adjust is not None:
                    adjust(grad, theta)
                rule.step(grad.unsqueeze(0))


def pulled_sgd(
    network: Network,
    data: tuple[Tensor, Tensor],
    order: Order,
    part: slice,
    keys: TrainKeys,
    pull: Pull,
    what: StepLoss = USUAL_LOSS,
) -> None:
    """`sgd` on one user's data under a pull, `pull.pick([u])`; its centre moves if it follows."""
    size = part.stop - part.start
    drift = pull.drift(slice(0, size), [size], 1, 0.0, network.flat)
    add = trained_only(network, part, drift)
    every = pull.every or max(len(order), 1)
    for start in range(0, len(order), every):
        piece = order[start : start + every]
        sgd(network, data, piece, part, keys, add, what.later(start))
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


class HalfPrecision:
    """Mixed precision: products in 16 bits by torch.autocast, the model and its steps in 32.

    In fp16 small gradients would vanish, so the loss is scaled up before they are taken and they
    are scaled down after. As in torch.amp.GradScaler the scale begins at 2^16, is halved at a
    gradient that is not finite and doubled after 2000 that are; but such a gradient is taken again
    instead of none: a round may have too few steps to lose some of them.
    """

    def __init__(self, keys: TrainKeys, device: torch.device) -> None:
        self.dtype, self.device = HALF_TYPES.get(keys.mixed_precision), device
        self.scale = LARGEST_SCALE if self.dtype is torch.float16 else 1.0
        self.good = 0

    def around(self) -> AbstractContextManager[object]:
        """The context of a forward pass."""
        if self.dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def backward(self, of: Callable[..., Tensor], x: Tensor, y: Tensor, grad: Tensor) -> None:
        """Add the gradient of `of(x, y)` to `grad`, which was 0."""
        with self.around():
            loss = of(x, y)
        if self.dtype is not torch.float16:
            torch.autograd.backward(loss)
            return
        while not self.scaled(loss, grad):
            self.scale, self.good = self.scale / 2, 0
            grad.zero_()
        self.good += 1
        if self.good == SCALE_GROWTH:
            self.scale, self.good = 2 * self.scale, 0

    def scaled(self, loss: Tensor, grad: Tensor) -> bool:
        """Take the gradient by way of the scaled loss; whether it is finite, or never will be."""
        torch.autograd.backward(loss * self.scale, retain_graph=True)
        grad.div_(self.scale)
        return self.scale <= 1.0 or bool(torch.isfinite(grad).all())


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
        number = int.from_bytes(blake2b(words, digest_size=7).digest(), "little")
        reseed(number, network.device)
        yield
