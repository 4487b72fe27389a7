"""The gradients of several users' losses at any point, for methods that are more than SGD steps.

`Losses.gradient` is nabla f_u(theta_u; xi_u) for all users u of a group: a method is written once,
in the words of its paper, on matrices with one row a user. `StackedLosses` computes it for all
users at once where `stacked` can, `AutogradLosses` for one user of any network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from corsage.core.arrays import Floats32
from corsage.core.groups import TrainKeys
from corsage.networks import stacked
from corsage.networks.batches import Examples, Order, Plan, steps_on
from corsage.networks.criterion import Sloped
from corsage.networks.half import HalfPrecision
from corsage.networks.hessian import hessian_product, second_derivatives
from corsage.networks.layers import Conv, Dense, Layer
from corsage.networks.network import Network
from corsage.networks.own_slopes import slopes

BARE = TrainKeys(momentum=0.0, weight_decay=0.0)


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
        keys: TrainKeys = BARE,
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
        keys: TrainKeys = BARE,
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


class StackedLosses(UserLosses):
    """The losses of several users at once, for networks that `stacked.supports`."""

    def __init__(
        self,
        network: Network,
        data: Examples,
        orders: Sequence[Sequence[Order]],
        group: Sequence[int],
        keys: TrainKeys = BARE,
    ) -> None:
        super().__init__(network, data, orders, group, keys)
        self.objective = data.objective and data.objective.pick(self.users)
        self.draws = [data.draws_of(self.users, own, s) for s, own in enumerate(orders)]
        self.layers_of()

    def layers_of(self) -> None:
        """The layers, and those of them that have weights."""
        network = self.network
        copies = stacked.Stacked(network, network.flat.unsqueeze(0), network.whole, BARE)
        self.gather = copies.gather
        places = {id(b.tensor): b.where for b in network.blocks}
        modules = network.layers
        self.layers: list[Layer] = []
        self.weighted: list[DenseGradient | ConvGradient] = []
        for module, layer in zip(modules, copies.layers, strict=True):
            own: Layer = layer
            if isinstance(module, nn.Linear | nn.Conv2d):
                where = [places[id(p)] for p in (module.weight, module.bias) if p is not None]
                own = with_columns(module, where)
                self.weighted.append(own)
            self.layers.append(own)
        self.head_from = len(self.layers) - 1  # where features go in

    def gradient(
        self,
        theta: Tensor,
        step: int,
        out: Tensor,
        beta: float = 0.0,
        scale: float | Tensor = 1.0,
        stream: int = 0,
    ) -> None:
        """One forward and backward pass of all users."""
        active = self.active[step]
        inputs, labels, share = self.batch(step, stream)
        each = scale[:active].view(-1, 1, 1) if isinstance(scale, Tensor) else scale
        for layer in self.weighted:
            layer.use(theta[:active], out[:active], beta)
        if self.data.losses is not None:
            self.propagate_own(inputs, labels, step, scale, stream)
            return
        sloped = self.sloped(slice(0, active))
        stacked.propagate(self.layers, 0, inputs, labels, share * each, sloped)

    def propagate_own(
        self, h: Tensor, labels: Tensor, step: int, scale: float | Tensor, stream: int
    ) -> None:
        """Forward and backward, with losses of the users' own; features go into the head."""
        features = h
        for i, layer in enumerate(self.layers):
            features = h if i == self.head_from else features
            h = layer.forward(h)
        onward, d = self.own_slopes(features, h, labels, step, scale, stream)
        for i in range(len(self.layers) - 1, -1, -1):
            d = self.layers[i].backward(d, onward=i > 0)
            if i and i == self.head_from and onward is not None:
                d = d + onward

    def own_slopes(
        self,
        features: Tensor,
        outputs: Tensor,
        labels: Tensor,
        step: int,
        scale: float | Tensor,
        stream: int,
        users: slice | None = None,
    ) -> tuple[Tensor | None, Tensor]:
        """The gradients of the users' own losses in features, if there are any, and in outputs."""
        assert self.data.losses is not None
        users = users or slice(0, self.active[step])
        own = [self.data.losses[u] for u in self.users[users]]
        sizes = self.plans[stream].sizes(step)[users]
        times = scale[users].view(-1) if isinstance(scale, Tensor) else scale
        return slopes(own, sizes, features, outputs, labels, times)

    def sloped(self, users: slice) -> Sloped:
        """What some users in a row are trained on."""
        if self.objective is None:
            return self.network.criterion
        return self.objective.pick(range(users.start, users.stop))

    def product(
        self, theta: Tensor, v: Tensor, step: int, out: Tensor, scale: float, stream: int = 0
    ) -> None:
        """The layers' forward passes, and two backward ones, of all users."""
        active = self.active[step]
        h, labels, share = self.batch(step, stream)
        with torch.enable_grad(), second_derivatives():
            at = theta[:active].detach().requires_grad_()
            for layer in self.weighted:
                layer.use(at, out[:active], 0.0)
            for one in self.layers:
                h = one.forward(h)
            loss = (self.each(h, labels) * share).sum()
            (found,) = hessian_product(loss, [at], [v[:active]])
        out[:active].add_(found, alpha=scale)

    def each(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of each sample (users, batch, 1)."""
        if self.objective is not None:
            return self.objective.each(outputs, labels)
        losses = self.network.criterion.each(outputs.flatten(0, 1), labels.flatten())
        return losses.view(labels.shape)

    def batch(
        self, step: int, stream: int, users: slice | None = None, width: int = 0
    ) -> tuple[Tensor, Tensor, float | Tensor]:
        """The inputs of a step, the labels, and what each sample counts for.

        With `users` of some in a row; with `width` their batches are all of that size.
        """
        plan, data = self.plans[stream], self.data
        users = users or slice(0, self.active[step])
        rows, weights = plan.rows[step, users], plan.weights[step]
        if width:
            rows, weights = rows[:, :width], None
        share = 1.0 / rows.shape[1] if weights is None else weights[users]
        labels = data.y[rows].unsqueeze(-1)
        if self.objective is not None:
            own = self.objective.pick(range(users.start, users.stop))
            share = own.share(labels, share)
        return self.inputs(rows, step, stream, users.start), labels, share

    def inputs(self, rows: Tensor, step: int, stream: int, first: int) -> Tensor:
        """The batches of a step, of users from `first` on; images are changed, if they are."""
        views, draws = self.data.views, self.draws[stream]
        if views is None or draws is None:
            return self.gather(self.data.x, rows)
        own = draws[step][first : first + len(rows)]
        changed = views.apply(self.data.x[rows.flatten()], own.flatten(0, 1))
        places = torch.arange(rows.numel(), device=rows.device).view(rows.shape)
        return self.gather(stacked.data_for(self.network, changed), places)


class Columns:
    """Weights and biases of a layer as columns of a matrix (users, P), gradients of another."""

    w: Tensor
    b: Tensor | None
    where: Sequence[slice]  # where the weights lie in P, and the biases if there are any
    shape: torch.Size

    def use(self, theta: Tensor, out: Tensor, beta: float) -> None:
        """Compute at theta; the gradients go to out <- beta * out + gradient."""
        self.beta = beta
        self.w = theta[:, self.where[0]].view(-1, *self.shape)
        self.gw = out[:, self.where[0]].view(-1, *self.shape)
        if len(self.where) > 1:
            self.b, self.gb = theta[:, self.where[1]], out[:, self.where[1]]


class DenseGradient(Columns, Dense):
    """A linear layer that takes no step."""

    def __init__(self, like: nn.Linear, where: Sequence[slice]) -> None:
        Dense.__init__(self, torch.empty(0), None, BARE, True)
        self.where, self.shape = where, like.weight.shape

    def backward(self, d: Tensor, onward: bool) -> Tensor:
        """The weights' gradient d'h goes straight to its place."""
        back = torch.bmm(d, self.w) if onward else d
        self.gw.baddbmm_(d.transpose(1, 2), self.h, beta=self.beta)
        if self.b is not None:
            accumulate(self.gb, d.sum(1), self.beta)
        return back


class ConvGradient(Columns, Conv):
    """A convolution that takes no step."""

    def __init__(self, like: nn.Conv2d, where: Sequence[slice]) -> None:
        Conv.__init__(self, torch.empty(0), None, BARE, True, None, like)
        self.where, self.shape = where, like.weight.shape

    def backward(self, d: Tensor, onward: bool) -> Tensor:
        """As `Conv`, without the step."""
        back, gw, gb = self.gradients(d, onward)
        accumulate(self.gw, gw.reshape(self.gw.shape), self.beta)
        if self.b is not None:
            accumulate(self.gb, gb.view(self.gb.shape), self.beta)
        return back if onward else d


def with_columns(
    module: nn.Linear | nn.Conv2d, where: Sequence[slice]
) -> DenseGradient | ConvGradient:
    """The layer that stands for a module whose parameters lie there."""
    if isinstance(module, nn.Linear):
        return DenseGradient(module, where)
    return ConvGradient(module, where)


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
