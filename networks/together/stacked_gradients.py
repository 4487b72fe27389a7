"""Gradients of several users' losses at once, for networks that are chains of plain layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from corsage.core.configuration.key_groups import TrainKeys
from corsage.networks.batches import Examples, Loss, Order
from corsage.networks.criterion import Sloped
from corsage.networks.gradients import (
    BARE_KEYS,
    UserLosses,
    accumulate,
    hessian_product,
    second_derivatives,
)
from corsage.networks.network import Network
from corsage.networks.together import stacked
from corsage.networks.together.layers import Conv, Dense, Layer


class StackedLosses(UserLosses):
    """The losses of several users at once, for networks that `stacked.supports`."""

    def __init__(
        self,
        network: Network,
        data: Examples,
        orders: Sequence[Sequence[Order]],
        group: Sequence[int],
        keys: TrainKeys = BARE_KEYS,
    ) -> None:
        super().__init__(network, data, orders, group, keys)
        self.objective = data.objective and data.objective.pick(self.users)
        self.draws = [data.draws_of(self.users, own, s) for s, own in enumerate(orders)]
        self.layers_of()

    def layers_of(self) -> None:
        """The layers, and those of them that have weights."""
        network = self.network
        copies = stacked.Stacked(network, network.flat.unsqueeze(0), network.whole, BARE_KEYS)
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
        features, changed = h, self.data.into_head is not None
        for i, layer in enumerate(self.layers):
            if i == self.head_from:
                features = h.detach().requires_grad_(changed)
                seen = self.into_head(features, slice(0, len(h)))
                h = seen.detach()
            h = layer.forward(h)
        onward, d = self.own_slopes(features, h, labels, step, scale, stream)
        for i in range(len(self.layers) - 1, -1, -1):
            d = self.layers[i].backward(d, onward=i > 0 or changed)
            if i != self.head_from:
                continue
            if changed:
                torch.autograd.backward(seen, d)
                assert features.grad is not None
                d = features.grad
            if i and onward is not None:
                d = d + onward

    def into_head(self, features: Tensor, users: slice) -> Tensor:
        """The features (users, batch, ...) of some users as their heads see them, with a graph."""
        if self.data.into_head is None:
            return features
        changes = [self.data.into_head[u] for u in self.users[users]]
        with torch.enable_grad():
            pairs = zip(changes, features, strict=True)
            return torch.stack([change(own) for change, own in pairs])

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
        """The criterion or objective of some users in a row."""
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
        Dense.__init__(self, torch.empty(0), None, BARE_KEYS, True)
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
        Conv.__init__(self, torch.empty(0), None, BARE_KEYS, True, None, like)
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


def slopes(
    losses: Sequence[Loss],
    sizes: Sequence[int],
    features: Tensor,
    outputs: Tensor,
    labels: Tensor,
    scale: float | Tensor,
) -> tuple[Tensor | None, Tensor]:
    """Gradients of scale * each user's loss in its features and outputs (users, batch, ...).

    Samples that only fill a batch up have none; None: no loss is one of features.
    """
    f, h = (t.detach().requires_grad_() for t in (features, outputs))
    with torch.enable_grad():
        own = zip(losses, sizes, f, h, labels.squeeze(-1), strict=True)
        each = torch.stack([loss(a[:n], b[:n], y[:n]) for loss, n, a, b, y in own])
        of_features, of_outputs = torch.autograd.grad(
            (each * scale).sum(), (f, h), allow_unused=True
        )
    return of_features, torch.zeros_like(h) if of_outputs is None else of_outputs
