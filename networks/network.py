"""A torch model as one flat vector, split into a body and a head.

The parameters (and float buffers) of a `Network` are views of one float32 vector laid out as
[body | head]. What the papers write as theta = (phi, h) is `flat`, `flat[body]`, `flat[head]`;
averages, proximal pulls and control variates are plain vector arithmetic on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from corsage.core.arrays import Floats32
from corsage.core.errors import ModelError
from corsage.core.paths import AUTO, LAYERS, PATHS, Path
from corsage.networks import batch_norm, inspection
from corsage.networks.answers import output_of
from corsage.networks.chain import chain_of
from corsage.networks.criterion import CROSS_ENTROPY, Criterion


@dataclass(frozen=True)
class Block:
    """One parameter or float buffer: its name, shape and place in the flat vector."""

    name: str
    shape: torch.Size
    where: slice
    tensor: Tensor
    trained: bool


class Network:
    """A module whose parameters are views of `flat`, with its head found by name.

    `split_exact`: logits(features(x)) is the module's output. `cacheable`: features computed once
    are those of every later head epoch. `why` says what stands against either. `stochastic`:
    training draws random numbers (dropout). `batch_statistics`: it normalises by those of a batch.
    `takes_channels_last`: images may have that layout, and with `channels_last` they have it.
    `layers`: those of a model that is a chain of plain layers. `stackable`: their kernels can train
    copies of it together. `widest_convolution`: the most channels that a convolution puts out.
    `criterion`: what it is trained and judged by. `path`: how many users are trained together, and
    in which layout, unless it is `stackable`.
    """

    def __init__(
        self,
        module: nn.Module,
        head_name: str,
        example: Tensor,
        device: str = "cpu",
        criterion: Criterion = CROSS_ENTROPY,
        path: str = AUTO,
    ) -> None:
        self.criterion = criterion
        self.module = module.float().to(device)
        self.device = torch.device(device)
        self.head_name = head_name or inspection.last_linear(module)
        self.head_module = inspection.find_head(module, self.head_name)
        self._flatten_storage()
        self.initial: Floats32 = self.flat.cpu().numpy().copy()
        self._active: slice | None = None
        found = inspection.inspect(self, example.to(self.device, torch.float32))
        self.split_exact, self.cacheable, self.why = found.split_exact, found.cacheable, found.why
        self.stochastic = found.stochastic
        self.linear_head = found.linear_head
        self.layers = chain_of(module, example.to(self.device, torch.float32))
        self.stackable = inspection.stackable(self) and path in (AUTO, LAYERS)
        self.path = PATHS.get(path) or Path(0, found.channels_last)
        self.takes_channels_last = found.channels_last
        self.channels_last = self.path.channels_last and self.takes_channels_last
        self.batch_statistics = batch_norm.needs_two(module)
        self.widest_convolution = inspection.widest_convolution(module)
        self.flat.copy_(torch.from_numpy(self.initial))

    def _flatten_storage(self) -> None:
        """Move every float tensor of the module into `flat`, the head's last."""
        tensors: list[tuple[str, Tensor, bool]] = [
            (n, p, p.requires_grad) for n, p in self.module.named_parameters()
        ]
        tensors += [(n, b, False) for n, b in self.module.named_buffers() if b.is_floating_point()]
        mine = {id(t) for t in (*self.head_module.parameters(), *self.head_module.buffers())}
        body = [t for t in tensors if id(t[1]) not in mine]
        head = [t for t in tensors if id(t[1]) in mine]
        size = sum(t.numel() for _, t, _ in tensors)
        self.flat = torch.zeros(size, device=self.device)
        self.grad = torch.zeros_like(self.flat)
        self.decay = torch.zeros_like(self.flat)
        self.blocks: list[Block] = []
        start = 0
        for name, tensor, trained in (*body, *head):
            where = slice(start, start + tensor.numel())
            self.flat[where] = tensor.detach().reshape(-1)
            tensor.data = self.flat[where].view(tensor.shape)
            if trained:
                tensor.grad = self.grad[where].view(tensor.shape)
                self.decay[where] = 1.0 if is_weight(name, tensor) else 0.0
            self.blocks.append(Block(name, tensor.shape, where, tensor, trained))
            start = where.stop
        split = sum(t.numel() for _, t, _ in body)
        self.body, self.head, self.whole = slice(0, split), slice(split, size), slice(0, size)
        self.has_buffers = any(not isinstance(b.tensor, nn.Parameter) for b in self.blocks)

    # -- the flat vector ---------------------------------------------------------------------

    def set(self, part: slice, values: Floats32 | Tensor) -> None:
        """Overwrite one part of the flat vector."""
        if isinstance(values, np.ndarray):
            values = torch.from_numpy(np.require(values, np.float32, ["C", "W"]))
        given = values.to(torch.float32)
        wanted = self.flat[part].shape
        if given.shape != wanted:
            raise ModelError(
                f"parameters of shape {tuple(given.shape)} given, {tuple(wanted)} wanted: "
                "they are those of another model."
            )
        self.flat[part].copy_(given)

    def get(self, part: slice) -> Floats32:
        """A copy of one part of the flat vector."""
        copy: Floats32 = self.flat[part].detach().cpu().numpy().copy()
        return copy

    def blocks_of(self, part: slice) -> Iterator[Block]:
        """The parameters and buffers that lie in one part."""
        return (b for b in self.blocks if part.start <= b.where.start and b.where.stop <= part.stop)

    def named(self, flat: Floats32, part: slice | None = None) -> dict[str, Floats32]:
        """One part's flat values as arrays with the names and shapes of the state dict."""
        part = part or self.whole
        flat = np.asarray(flat, dtype=np.float32)
        if flat.shape != (part.stop - part.start,):
            raise ModelError(
                f"{flat.size} parameters given, the model has {part.stop - part.start} here."
            )
        return {
            b.name: flat[b.where.start - part.start : b.where.stop - part.start].reshape(b.shape)
            for b in self.blocks_of(part)
        }

    def flatten(self, named: Mapping[str, NDArray[Any]], part: slice | None = None) -> Floats32:
        """The inverse of `named`; a key that is missing or misshapen is named."""
        part = part or self.whole
        flat = np.empty(part.stop - part.start, np.float32)
        for b in self.blocks_of(part):
            if b.name not in named:
                raise ModelError(f"parameter {b.name} is missing. Given: {', '.join(named)}.")
            values = np.asarray(named[b.name])
            if values.shape != tuple(b.shape):
                raise ModelError(
                    f"parameter {b.name} has shape {values.shape}, not {tuple(b.shape)}."
                )
            flat[b.where.start - part.start : b.where.stop - part.start] = values.reshape(-1)
        return flat

    def activate(self, part: slice) -> None:
        """Let only `part` require gradients: no work is done for what is frozen."""
        if self._active != part:
            for b in self.blocks:
                if b.trained:
                    inside = part.start <= b.where.start and b.where.stop <= part.stop
                    b.tensor.requires_grad_(inside)
            self._active = part

    def gather(self) -> None:
        """Take in what somebody else did to the module: where its tensors are, what is frozen."""
        for b in self.blocks:
            values = b.tensor.data
            if values.data_ptr() != self.flat[b.where].data_ptr():  # moved to a device, or replaced
                self.flat[b.where] = values.detach().reshape(-1).to(self.flat)
                b.tensor.data = self.flat[b.where].view(b.shape)
            if b.trained:
                b.tensor.grad = self.grad[b.where].view(b.shape)
        self._active = None

    # -- the function ------------------------------------------------------------------------

    def train(self, mode: bool = True) -> None:
        """Training mode, or evaluation mode."""
        self.module.train(mode)

    def __call__(self, x: Tensor) -> Tensor:
        """The same as `forward`."""
        return self.forward(x)

    def forward(self, x: Tensor) -> Tensor:
        """The module's output: logits (batch, classes), or (batch, 1)."""
        return output_of(self.module(self.arrange(x)))

    def features(self, x: Tensor) -> Tensor:
        """phi(x): what goes into the head."""
        return inspection.run_body(self.module, self.head_module, self.arrange(x))

    def logits(self, features: Tensor) -> Tensor:
        """The head on features."""
        output: Tensor = self.head_module(features)
        return output

    def arrange(self, x: Tensor) -> Tensor:
        """Images in the memory layout that the module is quickest with; the values are the same.

        PFLlib's CNN with channels_last images took .56 of the CPU time of the default at batch
        50 and .73 at batch 10, LeNet-5 .88 at batch 10 (weights stay as they are: converting
        them too gains nothing). A rule, not a timing: every process computes the same numbers.
        """
        return inspection.as_channels_last(x) if self.channels_last and x.dim() == 4 else x


def is_weight(name: str, tensor: Tensor) -> bool:
    """Whether weight decay applies: to weights, not to biases."""
    return name.rpartition(".")[2] != "bias" and (tensor.dim() > 1 or "bias" not in name)
