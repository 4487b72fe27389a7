"""The gradients of several users' losses at any point, for methods that are more than SGD steps.

`Losses.gradient` is nabla f_u(theta_u; xi_u) for all users u of a group: a method is written once,
in the words of its paper, on matrices with one row a user. `StackedLosses` computes it for all
users at once where `stacked` can, `AutogradLosses` for one user of any network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from corsage.core.arrays import Floats32
from corsage.core.configuration.key_groups import TrainKeys
from corsage.core.errors import ModelError, line
from corsage.networks.batches import Examples, Order, Plan, steps_on
from corsage.networks.local_training import together
from corsage.networks.network import Network
from corsage.networks.training import HalfPrecision, seeded

BARE_KEYS = TrainKeys(momentum=0.0, weight_decay=0.0)
NO_CURVATURE = "the gradient of the model has no derivative of its own"


class Losses(Protocol):
    """Losses of some users on their batches; `active[s]`: how many of them take step s.

    Users with more steps come first. A step has one batch xi in each of one or several streams.
    """

    active: list[int]

    def gradient(
        self,
        theta: Tensor,
        step: int,
        out: Tensor,
        beta: float = 0.0,
        scale: float | Tensor = 1.0,
        stream: int = 0,
    ) -> None:
        """out <- beta * out + scale * nabla f(theta; xi), for the users that take this step.

        theta and out are (users, P); `scale` is one number, or one a user. Running statistics
        (BatchNorm) that are part of theta move on in theta.
        """

    def product(
        self, theta: Tensor, v: Tensor, step: int, out: Tensor, scale: float, stream: int = 0
    ) -> None:
        """out += scale * nabla^2 f(theta; xi) v, by autograd, for the users that take this step."""


class UserLosses(Losses):
    """The losses of a group of users of a node, `orders[stream][user]` being their batches.

    `users` are numbers into the node's users, in the order of the rows of all matrices.
    """

    def __init__(
        self,
        network: Network,
        data: Examples,
        orders: Sequence[Sequence[Order]],
        group: Sequence[int],
        keys: TrainKeys = BARE_KEYS,
    ) -> None:
        self.network, self.data, self.orders, self.keys = network, data, orders, keys
        plans = (Plan.build(stream, data.offsets, group) for stream in orders)
        self.plans = [plan.to(data.x.device) for plan in plans]
        self.users, self.active = self.plans[0].users, self.plans[0].active

    def rows(self, start: Floats32) -> Tensor:
        """A copy of the users' rows of (all users, ...), or of one vector (P,) for each of them."""
        if start.ndim == 1:
            start = np.broadcast_to(start, (len(self.users), len(start)))
        else:
            start = start[self.users]
        return torch.from_numpy(np.array(start, np.float32, order="C")).to(self.network.device)


class AutogradLosses(UserLosses):
    """One user's losses, for any network."""

    def __init__(
        self,
        network: Network,
        data: Examples,
        orders: Sequence[Sequence[Order]],
        group: Sequence[int],
        keys: TrainKeys = BARE_KEYS,
    ) -> None:
        super().__init__(network, data, orders, group, keys)
        (self.user,) = group
        x, self.y = data.user(self.user)
        self.x = network.arrange(x) if data.views is None else x
        self.mean = data.mean_of(self.user, network.criterion.mean)
        mine = [stream[self.user] for stream in orders]
        self.rows_of = [steps_on(order, self.x.device) for order in mine]
        self.changes = [data.change_of(self.user, own, s) for s, own in enumerate(mine)]
        self.half = HalfPrecision(keys, network.device)

    def gradient(
        self,
        theta: Tensor,
        step: int,
        out: Tensor,
        beta: float = 0.0,
        scale: float | Tensor = 1.0,
        stream: int = 0,
    ) -> None:
        """One forward and backward pass."""
        network = self.network
        network.flat.copy_(theta[0])
        network.grad.zero_()
        with torch.enable_grad():
            self.half.backward(self.loss, *self.batch(step, stream), network.grad)
        accumulate(out[0], network.grad.mul_(scale), beta)
        if network.has_buffers:
            copy_statistics(network, network.flat, theta[0])

    def product(
        self, theta: Tensor, v: Tensor, step: int, out: Tensor, scale: float, stream: int = 0
    ) -> None:
        """A forward pass and two backward ones; running statistics stay as they are in theta."""
        network = self.network
        network.flat.copy_(theta[0])
        blocks = [b for b in network.blocks if b.trained]
        x, y = self.batch(step, stream)
        with torch.enable_grad(), second_derivatives():
            with self.half.around():
                loss = self.loss(x, y)
            directions = [v[0, b.where].view(b.shape) for b in blocks]
            found = hessian_product(loss, [b.tensor for b in blocks], directions)
        for b, product in zip(blocks, found, strict=True):
            out[0, b.where].add_(product.reshape(-1), alpha=scale)

    def batch(self, step: int, stream: int) -> tuple[Tensor, Tensor]:
        """The inputs of a step, changed if they are, and the labels."""
        rows = self.rows_of[stream][step]
        change, x = self.changes[stream], self.x[rows]
        return x if change is None else change(x, step), self.y[rows]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean loss of a batch."""
        return self.mean(self.network.forward(x), y)


def accumulate(out: Tensor, g: Tensor, beta: float) -> None:
    """out <- beta * out + g; with beta = 0 it does not matter what was in out."""
    if beta:
        out.mul_(beta).add_(g)
    else:
        out.copy_(g)


def copy_statistics(network: Network, source: Tensor, target: Tensor) -> None:
    """Copy the running statistics, which are not parameters, of whole models (..., P)."""
    for b in network.blocks:
        if not isinstance(b.tensor, nn.Parameter):
            target[..., b.where] = source[..., b.where]


@contextmanager
def training(network: Network) -> Iterator[None]:
    """Around all uses of `gradient`: every parameter in training mode, no graph outside of it."""
    network.activate(network.whole)
    network.train()
    with torch.no_grad():
        yield


def hessian_product(
    loss: Tensor, at: Sequence[Tensor], directions: Sequence[Tensor]
) -> list[Tensor]:
    """nabla^2 loss v, by the gradient of nabla loss . v."""
    first = torch.autograd.grad(loss, at, create_graph=True, allow_unused=True)
    pairs = [(g, v) for g, v in zip(first, directions, strict=True) if g is not None]
    if not all(g.requires_grad for g, _ in pairs):
        raise RuntimeError(NO_CURVATURE)
    dot = torch.stack([(g * v).sum() for g, v in pairs]).sum()
    second = torch.autograd.grad(dot, at, allow_unused=True)
    if any(h is None and g is not None for h, g in zip(second, first, strict=True)):
        raise RuntimeError(NO_CURVATURE)
    found = zip(second, directions, strict=True)
    return [torch.zeros_like(v) if h is None else h for h, v in found]


@contextmanager
def second_derivatives() -> Iterator[None]:
    """Say in one line if an operation has none; of attention's kernels the sums alone have some."""
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    except (NotImplementedError, RuntimeError) as error:
        if "derivative" not in str(error) and "differentiate twice" not in str(error):
            raise
        raise ModelError(
            f"a Hessian-vector product: {line(error)}; take perfedavg-variant=hf or fo."
        ) from error


Work = Callable[[UserLosses], Sequence[Tensor]]


def in_groups(
    network: Network,
    data: Examples,
    orders: Sequence[Sequence[Order]],
    vectors: int,
    work: Work,
    keys: TrainKeys = BARE_KEYS,
) -> list[Floats32]:
    """The results of `work` for all users; it gets them in groups, as many as are trained together.

    `orders[stream][user]` are the batches. `work` returns tensors with one row for each of
    `losses.users`; `vectors` is how many vectors of the model's size it holds for a user. The
    precision of gradients is that of `keys`.
    """
    if data.losses is not None:
        raise ModelError("a loss of its own is for methods whose local steps are those of SGD.")
    several = together() and together().several_losses(network, data, orders, vectors, keys)
    todo = several.groups if several else [[u] for u in range(len(orders[0]))]
    out: list[Floats32] = []
    with training(network):
        while todo:
            group = todo.pop(0)
            if several:
                losses = several.losses(group)
            else:
                losses = AutogradLosses(network, data, orders, group, keys)
            with nullcontext() if several else seeded(network, orders[0][group[0]]):
                found = [rows.cpu().numpy() for rows in work(losses)]
            if len(group) > 1 and not all(np.isfinite(rows).all() for rows in found):
                # A grouped convolution may mix another user's NaN in: see together/parts.py.
                todo = [[u] for u in group] + todo
                continue
            out = out or [np.empty((len(data), *rows.shape[1:]), np.float32) for rows in found]
            for whole, rows in zip(out, found, strict=True):
                whole[losses.users] = rows
    return out
