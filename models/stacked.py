"""Several users' copies of one model trained together: parameters with a leading user axis.

Works for a Sequential of linear, convolution, max-pool, ReLU and flatten layers, and for linear
heads on features. Each user's numbers are those of the loop over users, up to float rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corsage.app.config import TrainKeys
from corsage.models.layers import Conv, Dense, Flatten, Layer, MaxPool, Relu
from corsage.models.network import Block, Network
from corsage.models.ragged import Examples, Plan

Gather = Callable[[Tensor, Tensor], Tensor]
PLAIN = (nn.Linear, nn.Conv2d, nn.MaxPool2d, nn.ReLU, nn.Flatten, nn.Identity)


class Stacked:
    """Copies of a network's layers for the users whose parameters are `rows` (users, P)."""

    def __init__(self, network: Network, rows: Tensor, part: slice, keys: TrainKeys) -> None:
        self.rows, self.part, self.images = rows, part, False
        self.keys = keys
        self.layers: list[Layer] = []
        self.copies: list[tuple[slice, Tensor]] = []
        blocks = {id(b.tensor): b for b in network.blocks}
        channels = 1
        for module in plain_layers(network.module):
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
    ) -> tuple[Tensor, Tensor | None, TrainKeys, bool]:
        """A layer's weights and biases of all users, copied out of the rows."""
        pair: list[Tensor | None] = []
        trained = False
        for tensor in (module.weight, module.bias):
            if tensor is None:
                pair.append(None)
                continue
            block = blocks[id(tensor)]
            trained = self.part.start <= block.where.start and block.where.stop <= self.part.stop
            copy = self.rows[:, block.where].reshape(len(self.rows), *block.shape).clone()
            pair.append(copy)
            if trained:
                self.copies.append((block.where, copy))
        weight = pair[0]
        assert weight is not None
        return weight, pair[1], self.keys, trained

    def result(self) -> Tensor:
        """The trained part of every user, (users, P_part)."""
        out = self.rows[:, self.part].clone()
        for where, copy in self.copies:
            out[:, where.start - self.part.start : where.stop - self.part.start] = copy.flatten(1)
        return out

    def gather(self, x: Tensor, rows: Tensor) -> Tensor:
        """Batches (users, batch, features), or (batch, users * channels, h, w) of images."""
        if not self.images:
            return flat_rows(x, rows)
        users, batch = rows.shape
        _, height, width, channels = x.shape
        picked = x.index_select(0, rows.t().flatten()).view(batch, users, -1, channels)
        wide = picked.transpose(1, 2).contiguous().view(batch, height, width, users * channels)
        return wide.permute(0, 3, 1, 2)


def plain_layers(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of a Sequential of Sequentials, in order."""
    if type(module) is nn.Sequential:
        for child in module:
            yield from plain_layers(child)
    else:
        yield module


def supports(network: Network) -> bool:
    """Whether `Stacked` computes the same function as the network's module."""
    layers = [m for m in plain_layers(network.module) if type(m) is not nn.Identity]
    ends = bool(layers) and layers[-1] is network.head_module and network.linear_head
    once = len({id(m) for m in layers}) == len(layers)
    trained = all(b.trained for b in network.blocks) and not network.has_buffers
    return ends and once and trained and all(is_plain(m) for m in layers) and in_order(layers)


def is_plain(module: nn.Module) -> bool:
    """Whether a layer is one of `PLAIN` with the usual options."""
    if type(module) not in PLAIN or module._forward_hooks or module._forward_pre_hooks:
        return False
    if isinstance(module, nn.Conv2d):
        usual = module.groups == 1 and module.padding_mode == "zeros"
        return usual and not isinstance(module.padding, str)
    if isinstance(module, nn.MaxPool2d):
        return not module.return_indices
    return not isinstance(module, nn.Flatten) or (module.start_dim, module.end_dim) == (1, -1)


def in_order(layers: list[nn.Module]) -> bool:
    """Whether it is convolutions first (if any), one Flatten, then linear layers."""
    kinds = [type(m) for m in layers]
    if nn.Conv2d not in kinds and nn.MaxPool2d not in kinds:
        return True
    flat = kinds.index(nn.Flatten) if nn.Flatten in kinds else 0
    before, after = set(kinds[:flat]), set(kinds[flat:])
    return (
        kinds[0] is nn.Conv2d and nn.Linear not in before and not after & {nn.Conv2d, nn.MaxPool2d}
    )


def data_for(network: Network, x: Tensor) -> Tensor:
    """The examples as `Stacked.gather` reads them: images with channels last, else flat rows."""
    if next(plain_layers(network.module)).__class__ is nn.Conv2d:
        return x.permute(0, 2, 3, 1).contiguous()
    return x.flatten(1)


@torch.no_grad()
def run(layers: Sequence[Layer], gather: Gather, data: Examples, plan: Plan) -> None:
    """Take all steps of a plan with the mean softmax cross-entropy of each user's batch."""
    first = next((i for i, layer in enumerate(layers) if layer.trained), len(layers))
    every = plan.rows.to(data.x.device)
    labels = data.y[every].unsqueeze(-1)
    minus_one = data.x.new_full((1, 1, 1), -1.0).expand(labels.shape[1:])
    for s, active in enumerate(plan.active):
        rows, weights = every[s, :active], plan.weights[s]
        h = gather(data.x, rows)
        for layer in layers:
            h = layer.forward(h)
        # The loss' gradient: (softmax - one-hot) / batch size.
        d = F.softmax(h, dim=2).scatter_add_(2, labels[s, :active], minus_one[:active])
        d = d.mul_(1.0 / rows.shape[1]) if weights is None else d.mul_(weights.to(d.device))
        for i in range(len(layers) - 1, first - 1, -1):
            d = layers[i].backward(d, onward=i > first)


def flat_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Batches (users, batch, features)."""
    return x.index_select(0, rows.flatten()).view(*rows.shape, -1)


def train_stacked(
    network: Network, rows: Tensor, part: slice, work: tuple[Examples, Plan], keys: TrainKeys
) -> Tensor:
    """Train one part of the models `rows` (users, P), which are in the plan's order of users."""
    stacked = Stacked(network, rows, part, keys)
    run(stacked.layers, stacked.gather, *work)
    return stacked.result()
