"""Per-FedAvg's Hessian-vector products: how far from exact ones, and what they cost.

Per-FedAvg takes nabla^2 f(w) g at a user's batch, g being the gradient at another one. Exact is the
gradient of nabla f . g in double precision. Beside it stand what `perfedavg-variant=exact` computes
and the difference of two gradients, `hf`, with the delta of its default. w are models of digits
(for LeNet-5 enlarged to 28 x 28), trained for some epochs on all users' data. Errors are medians
of |found - exact| / |exact| over the users' batches; seconds are those of the products of ten users
at once.

    python -m corsage.benchmarks hessian
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from corsage.benchmarks.measure import Measure
from corsage.core.configuration.config import Config
from corsage.core.configuration.key_groups import ModelKeys, TrainKeys
from corsage.core.seeding import generator
from corsage.datasets.dealing.federated import simulated
from corsage.networks.batches import Examples
from corsage.networks.build import build_network
from corsage.networks.gradients import training
from corsage.networks.network import Network
from corsage.networks.together import stacked
from corsage.networks.together.stacked_gradients import StackedLosses
from corsage.networks.training import batches, sgd, to_tensors
from corsage.strategies.perfedavg import PerFedAvgKeys

USERS, REPEATS, EPOCHS = 10, 5, (3, 30)
EXACT, COST = 2e-3, 3.0
"""Single precision, of gradients that are nearly 0 after 30 epochs; and autograd's double backward,
whose passes take more than those of the kernels that two gradients have."""
MODELS = {"MLP": ModelKeys(model="mlp"), "LeNet-5": ModelKeys(model="lenet")}


def run() -> Iterator[Measure]:
    """Both models, little trained and much."""
    for name, keys in MODELS.items():
        yield from of_model(name, keys)


def of_model(name: str, keys: ModelKeys) -> Iterator[Measure]:
    """Errors of one model after so many epochs, and what products cost."""
    data = users()
    if keys.model == "lenet":
        data = data.over(F.interpolate(data.x, (28, 28)))
    net = build_network(keys, tuple(data.x.shape[1:]), 10, 0)
    orders = [batches(generator(0, "hessian", u), int(n), 1, 10) for u, n in enumerate(data.sizes)]
    ready = data.over(stacked.data_for(net, data.x))
    losses = StackedLosses(net, ready, [orders, [order[::-1] for order in orders]], range(USERS))
    for epochs in EPOCHS:
        w = trained(net, data, epochs)
        with training(net):
            exact, hf = (float(np.median(each)) for each in errors(net, losses, w))
        said = f"by differences (hf) {hf:.2g}; medians of {sum(losses.active)} products"
        yield Measure(f"{name}, {epochs} epochs: relative error", exact, EXACT, "", said)
    with training(net):
        theta = torch.from_numpy(np.tile(net.initial, (USERS, 1)))
        ours, two = (cost(way, losses, theta) for way in (by_autograd, by_differences))
    said = f"CPU ms a product and user: exact {ours:.2f}, two gradients {two:.2f}"
    yield Measure(f"{name}: CPU seconds", ours / two, COST, "of two gradients", said)


def errors(net: Network, losses: StackedLosses, w: Any) -> tuple[list[float], list[float]]:
    """Relative errors of all users' products, by autograd and by differences."""
    theta = torch.from_numpy(np.tile(w, (USERS, 1)))
    found: tuple[list[float], list[float]] = ([], [])
    for step, active in enumerate(losses.active):
        g = torch.zeros_like(theta)
        losses.gradient(theta, step, g, stream=1)
        exact = [reference(net, w, g[i], batch(losses, step, i)) for i in range(active)]
        for each, way in zip(found, (by_autograd, by_differences), strict=True):
            rows = way(losses, theta, g, step)
            each += [error(rows[i], exact[i]) for i in range(active)]
    return found


def users() -> Examples:
    """Ten users of digits, two classes each."""
    config = Config.parse({"dataset": "digits", "num-users": USERS})
    data = simulated(config.data, USERS, 0)
    own = [data[user] for user in data.users]
    pairs = [to_tensors(u.x_train, u.y_train, data.shift, data.scale) for u in own]
    return Examples.join(pairs)


def trained(net: Network, data: Examples, epochs: int) -> Any:
    """A model after some epochs."""
    order = batches(generator(0, "hessian"), len(data.y), epochs, 10)
    net.set(net.whole, net.initial)
    sgd(net, (data.x, data.y), order, net.whole, TrainKeys(lr=0.05))
    return net.get(net.whole)


def by_autograd(losses: StackedLosses, theta: Tensor, g: Tensor, step: int) -> Tensor:
    """`perfedavg-variant=exact`."""
    out = torch.zeros_like(theta)
    losses.product(theta, g, step, out, 1.0)
    return out


def by_differences(losses: StackedLosses, theta: Tensor, g: Tensor, step: int) -> Tensor:
    """`perfedavg-variant=hf`."""
    out, delta = torch.zeros_like(theta), PerFedAvgKeys().perfedavg_delta
    for sign in (1.0, -1.0):
        losses.gradient(theta + sign * delta * g, step, out, 1.0, sign / (2 * delta))
    return out


def cost(product: Callable[..., Tensor], losses: StackedLosses, theta: Tensor) -> float:
    """CPU milliseconds of a product of one user."""
    g, seconds = torch.full_like(theta, 1e-3), []
    for _ in range(REPEATS):
        begin = time.process_time()
        for step in range(len(losses.active)):
            product(losses, theta, g, step)
        seconds.append(time.process_time() - begin)
    return 1e3 * min(seconds) / sum(losses.active)


def batch(losses: StackedLosses, step: int, row: int) -> tuple[Tensor, Tensor]:
    """One user's inputs and labels of a step."""
    user = losses.users[row]
    x, y = losses.data.user(user)
    rows = losses.orders[0][user][step]
    images = x[rows].permute(0, 3, 1, 2) if x.dim() == 4 else x[rows]
    return images, y[rows]


def reference(net: Network, w: Any, g: Tensor, data: tuple[Tensor, Tensor]) -> Tensor:
    """In double precision."""
    module: nn.Module = copy.deepcopy(net.module).double()
    sizes = [b.where.stop - b.where.start for b in net.blocks]

    def loss(theta: Tensor) -> Tensor:
        pieces = torch.split(theta, sizes)
        named = {b.name: p.view(b.shape) for b, p in zip(net.blocks, pieces, strict=True)}
        return F.cross_entropy(functional_call(module, named, (data[0].double(),)), data[1])

    with torch.enable_grad():
        start = torch.from_numpy(np.asarray(w, np.float64))
        hvp: Callable[..., Any] = torch.autograd.functional.hvp
        found: Tensor = hvp(loss, start, g.double())[1]
    return found


def error(found: Tensor, exact: Tensor) -> float:
    """|found - exact| / |exact|."""
    return float((found.double() - exact).norm() / exact.norm())
