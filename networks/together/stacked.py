"""Several users' copies of one model trained together: parameters with a leading user axis.

Works for chains of linear, convolution, max-pool, ReLU and flatten layers (`chain`), and for
linear heads on features. Each user's numbers are those of the loop over users, up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from corsage.core.arrays import Floats32
from corsage.core.configuration.key_groups import TrainKeys
from corsage.networks.batches import Plan
from corsage.networks.criterion import Sloped
from corsage.networks.local_training import Job
from corsage.networks.network import Block, Network
from corsage.networks.proximal import Drift, Pull
from corsage.networks.together.layers import Conv, Dense, Flatten, Layer, MaxPool, Relu


class Stacked:
    """Copies of a network's layers for the users whose parameters are `rows` (users, P).

    With `head`, copies of its head only, for features; `rows` are heads (users, P_head).
    """

    def __init__(
        self,
        network: Network,
        rows: Tensor,
        part: slice,
        keys: TrainKeys,
        pull: Pull | None = None,
        head: bool = False,
    ) -> None:
        self.rows, self.part, self.images = rows, part, False
        self.first = network.head.start if head else 0  # where the rows begin in the flat vector
        self.keys, self.pull = keys, pull
        self.layers: list[Layer] = []
        self.copies: list[tuple[slice, Tensor]] = []
        self.centres: list[tuple[slice, Tensor]] = []
        blocks = {id(b.tensor): b for b in network.blocks}
        channels = 1
        for module in network.head_layers if head else network.layers:
            if isinstance(module, nn.Linear):
                self.layers.append(Dense(*self._parameters(module, blocks)))
            elif isinstance(module, nn.Conv2d):
                self.images = self.images or not self.layers
                channels = module.out_channels
                self.layers.append(Conv(*self._parameters(module, blocks), like=module))
            elif isinstance(module, nn.MaxPool2d):
                self.layers.append(MaxPool(module))
            elif isinstance(module, nn.ReLU):
                self.layers.append(Relu())
            elif isinstance(module, nn.Flatten):
                self.layers.append(Flatten(channels))

    def _parameters(
        self, module: nn.Linear | nn.Conv2d, blocks: dict[int, Block]
    ) -> tuple[Tensor, Tensor | None, TrainKeys, bool, tuple[Drift, Drift] | None]:
        """A layer's weights and biases of all users, copied out of the rows, and their pull."""
        pair: list[Tensor | None] = []
        drifts: list[Drift] = []
        trained = False
        for tensor in (module.weight, module.bias):
            if tensor is None:
                pair.append(None)
                continue
            block = blocks[id(tensor)]
            trained = self.part.start <= block.where.start and block.where.stop <= self.part.stop
            values = self.rows[:, moved(block.where, self.first)]
            copy = values.reshape(len(self.rows), *block.shape)
            if len(self.rows) > 1:  # of one user they are trained where they are
                copy = copy.clone()
            pair.append(copy)
            if trained:
                where = moved(block.where, self.part.start)
                self.copies.append((where, copy))
                if self.pull is not None:
                    drifts.append(self._drift(where, copy, tensor is module.weight))
        weight = pair[0]
        assert weight is not None
        pull = (drifts[0], drifts[-1]) if drifts else None
        return weight, pair[1], self.keys, trained, pull

    def _drift(self, where: slice, copy: Tensor, decayed: bool) -> Drift:
        """The pull on one parameter, and its weight decay."""
        assert self.pull is not None
        decay = self.keys.decay if decayed else 0.0
        drift = self.pull.drift(where, copy.shape[1:], len(copy), decay, copy)
        if drift.centre is not None:
            self.centres.append((where, drift.centre))
        return drift

    def result(self) -> Tensor:
        """The trained part of every user, (users, P_part)."""
        rows = self.rows[:, moved(self.part, self.first)]
        return joined(rows.clone(), self.copies) if len(rows) > 1 else rows

    def centre(self) -> Tensor:
        """The centres of every user's pull at the end, if they followed."""
        return joined(torch.zeros_like(self.rows[:, moved(self.part, self.first)]), self.centres)

    def gather(self, x: Tensor, rows: Tensor) -> Tensor:
        """Batches (users, batch, features), or (batch, users * channels, h, w) of images."""
        if not self.images:
            return flat_rows(x, rows)
        users, batch = rows.shape
        _, height, width, channels = x.shape
        picked = x.index_select(0, rows.t().flatten()).view(batch, users, -1, channels)
        wide = picked.transpose(1, 2).contiguous().view(batch, height, width, users * channels)
        return wide.permute(0, 3, 1, 2)


def moved(where: slice, first: int) -> slice:
    """A place in the flat vector as a place in a piece of it that begins at `first`."""
    return slice(where.start - first, where.stop - first)


def joined(out: Tensor, pieces: list[tuple[slice, Tensor]]) -> Tensor:
    """Rows with some of their columns replaced by parameters (users, *shape)."""
    for where, piece in pieces:
        out[:, where] = piece.flatten(1)
    return out


def data_for(network: Network, x: Tensor) -> Tensor:
    """The examples as `Stacked.gather` reads them: images with channels last, else flat rows."""
    if network.widest_convolution:
        return x.permute(0, 2, 3, 1).contiguous()
    return x.flatten(1)


def propagate(
    layers: Sequence[Layer],
    first: int,
    h: Tensor,
    labels: Tensor,
    share: float | Tensor,
    criterion: Sloped,
) -> None:
    """Forward, share * the slope of each sample's loss, and backward to `first`.

    A share of 1 / batch size is the mean loss. The layers keep their gradients.
    """
    for layer in layers:
        h = layer.forward(h)
    d = criterion.slope(h, labels).mul_(share)
    for i in range(len(layers) - 1, first - 1, -1):
        d = layers[i].backward(d, onward=i > first)


def flat_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Batches (users, batch, features)."""
    return x.index_select(0, rows.flatten()).view(*rows.shape, *x.shape[1:])


@torch.no_grad()
def train_stacked(
    job: Job, models: Floats32, group: list[int]
) -> tuple[list[int], Tensor, Tensor | None]:
    """Users in the order of the rows, their trained part, and the centres if these followed.

    `models` are whole ones (users, P), or with `job.head` linear heads. An only user's whole model
    is trained where it is in the network; the centres of a pull move after every so many steps.
    """
    network, plan = job.network, Plan.build(job.orders, job.data.offsets, group)
    if len(group) > 1 or job.head or job.part != network.whole:
        starts = torch.from_numpy(models[plan.users]).to(job.data.x.device)
    else:
        network.set(network.whole, models[plan.users[0]])
        starts = network.flat.unsqueeze(0)
    pull = job.pull and job.pull.pick(plan.users)
    copies, x = Stacked(network, starts, job.part, job.keys, pull, job.head), job.data.x
    layers, follow = copies.layers, pull.every if pull is not None else 0
    first = next((i for i, layer in enumerate(layers) if layer.trained), len(layers))
    plan = plan.to(x.device)
    labels = job.data.y[plan.rows].unsqueeze(-1)
    for s, active in enumerate(plan.active):
        rows, weights = plan.rows[s, :active], plan.weights[s]
        share = 1.0 / rows.shape[1] if weights is None else weights
        h = copies.gather(x, rows)
        propagate(layers, first, h, labels[s, :active], share, network.criterion)
        if follow and (s + 1) % follow == 0:
            for layer in layers:
                layer.follow(active)
    return plan.users, copies.result(), copies.centre() if follow else None
