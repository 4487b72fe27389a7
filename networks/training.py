"""The training loop that all algorithms share, and the evaluation of all users of a node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corsage.core.arrays import Floats32, Ints
from corsage.core.errors import ModelError
from corsage.core.groups import TrainKeys
from corsage.networks.batches import Examples, Loss, Order
from corsage.networks.criterion import Criterion
from corsage.networks.network import Network
from corsage.networks.pull import Drift, Pull

Adjust = Callable[[Tensor, Tensor], None]
CHUNK = {True: 128, False: 1024}


def batches(rng: np.random.Generator, n: int, epochs: int, batch_size: int) -> list[Ints]:
    """The steps of some epochs as row numbers: a permutation each, the last short batch kept."""
    steps: list[Ints] = []
    for _ in range(epochs):
        order = rng.permutation(n)
        steps.extend(order[i : i + batch_size] for i in range(0, n, batch_size))
    return steps


def to_tensors(
    x: NDArray[Any], y: NDArray[Any], shift: float, scale: float, device: str | torch.device = "cpu"
) -> tuple[Tensor, Tensor]:
    """Raw arrays (bytes or floats) as float32 `(x - shift) * scale`, and labels.

    Classes are int64; labels that are numbers (floats) are float32, as the outputs are.
    """
    inputs = torch.from_numpy(np.require(x, requirements=["C", "W"]))
    inputs = inputs.to(device, torch.float32, copy=True)
    kind = np.float32 if y.dtype.kind == "f" else np.int64
    labels = torch.from_numpy(np.array(y, kind)).to(device)
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
    decay = network.decay[part] * keys.weight_decay if keys.weight_decay else None
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
                if decay is not None:
                    grad.addcmul_(theta, decay)
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


@dataclass(frozen=True)
class Scores:
    """One row a user: what its measure counts, sum of losses, number of test examples.

    Counted are right answers where labels are classes, squared errors where they are numbers.
    """

    counted: NDArray[np.float64]
    loss: NDArray[np.float64]
    n: Ints


@torch.no_grad()
def evaluate(network: Network, body: Floats32, heads: Floats32, data: Examples) -> Scores:
    """All users with one body and their own heads (users, P_head)."""
    network.set(network.body, body)
    if not network.split_exact:
        whole = np.concatenate([np.broadcast_to(body, (len(heads), len(body))), heads], axis=1)
        return evaluate_models(network, whole, data)
    features = all_features(network, data.x)
    if network.linear_head:
        return score(network.criterion, linear_logits(network, features, heads, data), data)
    logits = features.new_empty(0)
    for u, head in enumerate(heads):
        network.set(network.head, head)
        where = slice(int(data.offsets[u]), int(data.offsets[u] + data.sizes[u]))
        if data.sizes[u]:
            own = network.logits(features[where])
            logits = logits if len(logits) else features.new_zeros(len(features), own.shape[1])
            logits[where] = own
    return score(network.criterion, logits, data)


@torch.no_grad()
def evaluate_models(network: Network, models: Floats32, data: Examples) -> Scores:
    """All users with one whole model (P,), or each with its own (users, P)."""
    network.train(False)
    if models.ndim == 1:
        network.set(network.whole, models)
        return score(network.criterion, chunks(network.forward, data.x), data)
    logits = []
    for u, model in enumerate(models):
        network.set(network.whole, model)
        logits.append(chunks(network.forward, data.user(u)[0]))
    outputs = torch.cat([part for part in logits if len(part)] or [data.x[:0]])
    return score(network.criterion, outputs, data)


@torch.no_grad()
def evaluate_picked(network: Network, models: Floats32, picked: Ints, data: Examples) -> Scores:
    """All users, each with one of some models (K, P)."""
    each = [evaluate_models(network, model, data) for model in models]
    users = np.arange(len(picked))
    counted, loss = (
        np.stack([getattr(scores, name) for scores in each])[picked, users]
        for name in ("counted", "loss")
    )
    return Scores(counted, loss, data.sizes)


@torch.no_grad()
def all_features(network: Network, x: Tensor) -> Tensor:
    """The body's features of all examples, in evaluation mode."""
    network.train(False)
    return chunks(network.features, x)


def chunks(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A function of examples, piece by piece: bounded memory, and activations stay in cache.

    500 images through PFLlib's CNN: 24 ms in pieces of 50-100, 49 ms in pieces of 1,000.
    """
    parts = [function(part) for part in torch.split(x, CHUNK[x.dim() == 4])]
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def linear_logits(network: Network, features: Tensor, heads: Floats32, data: Examples) -> Tensor:
    """Each user's own linear head on its own features: batched products over users of like size."""
    weight, bias = split_heads(network, torch.from_numpy(np.ascontiguousarray(heads)))
    weight, bias = weight.to(features.device), bias.to(features.device)
    logits = features.new_empty(len(features), weight.shape[1])
    by_size = np.argsort(data.sizes, kind="stable")
    by_size = by_size[data.sizes[by_size] > 0]
    for size in np.unique(data.sizes[by_size]):
        users = by_size[data.sizes[by_size] == size]
        rows = torch.from_numpy((data.offsets[users, None] + np.arange(size)).reshape(-1))
        rows, who = rows.to(features.device), torch.from_numpy(users).to(features.device)
        own = features[rows].view(len(users), int(size), features.shape[1])
        result = torch.baddbmm(bias[who].unsqueeze(1), own, weight[who].transpose(1, 2))
        logits[rows] = result.flatten(0, 1)
    return logits


def split_heads(network: Network, heads: Tensor) -> tuple[Tensor, Tensor]:
    """Flat linear heads (users, P_head) as W (users, classes, features) and b (users, classes)."""
    classes, width = network.blocks_of(network.head).__next__().shape
    weight = heads[:, : classes * width].reshape(len(heads), classes, width)
    bias = heads[:, classes * width :]
    return weight, bias if bias.shape[1] else heads.new_zeros(len(heads), classes)


def score(criterion: Criterion, outputs: Tensor, data: Examples) -> Scores:
    """What is counted, and losses, summed for each user; a user's NaN stays its own."""
    if not len(data.y):
        return Scores(np.zeros(len(data)), np.zeros(len(data)), data.sizes)
    user = np.repeat(np.arange(len(data)), data.sizes)
    counted, loss = (
        np.bincount(user, each(outputs, data.y).cpu().numpy(), len(data)).astype(np.float64)
        for each in (criterion.counted, criterion.each)
    )
    return Scores(counted, loss, data.sizes)
