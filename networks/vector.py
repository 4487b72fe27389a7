"""Models as flat vectors of what travels; the rest stays where it is.

The vector is float32, laid out as [shared | a user's own] (the papers' body and head): trained
parameters, and buffers that training moves. Integer buffers, and those in whose place training puts
others, have slots in it too, and are copied to the module before a pass and back after it.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from corsage.core.arrays import Arrays, Floats32
from corsage.core.errors import ModelError
from corsage.networks.fixed import Fixed
from corsage.networks.parameter_groups import Names
from corsage.networks.run_modes import Division

LARGE_MODEL = 1_000_000
"""Parameters from which on a vector of their size costs more than a few calls."""
FORGOTTEN_BYTES = 2**22
"""Bytes from which on a model's own values are not held for nobody."""


@dataclass(frozen=True)
class Block:
    """One parameter or buffer: its name, shape and place in the flat vector."""

    name: str
    shape: torch.Size
    where: slice
    tensor: Tensor
    trained: bool
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Loose:
    """A buffer that is no view of the vector: its block, and where the module has it."""

    block: Block
    owner: nn.Module
    attribute: str


class Vector:
    """The tensors of a module that travel, as views of `flat`, and the others, which are fixed.

    Parameters
    ----------
    module : is given these views as its parameters and buffers.
    division : whose each of them is.
    """

    def __init__(self, module: nn.Module, division: Division, device: torch.device) -> None:
        self.module, self.device = module, device
        own, still = division.owners.personal, division.owners.frozen
        named = [*module.named_parameters(), *module.named_buffers()]
        moving = [pair for pair in named if pair[0] not in still]
        body = [pair for pair in moving if pair[0] not in own]
        head = [pair for pair in moving if pair[0] in own]
        sizes = [sum(t.numel() for _, t in part) for part in (body, head)]
        self.body, self.head = slice(0, sizes[0]), slice(sizes[0], sum(sizes))
        self.whole = slice(0, sum(sizes))
        self.flat = torch.zeros(self.whole.stop, device=device)
        self.grad = untouched(self.whole.stop, device)
        self.active: slice | None = None
        self.blocks: list[Block] = []
        self.loose: list[Loose] = []
        for name, tensor in (*body, *head):
            self._take(name, tensor, division.rebound)
        self.has_buffers = any(not isinstance(b.tensor, nn.Parameter) for b in self.blocks)
        self.fixed = Fixed(module, {n: t for n, t in named if n in still})
        self._initial: Floats32 | None = self.get(self.whole)
        self.remake: Callable[[], nn.Module] | None = None
        self._given: Callable[[], object] | None = None  # the memory of `flat`, at somebody else's

    @property
    def initial(self) -> Floats32:
        """The module's own values, before anybody trains it."""
        found = self._initial  # another thread may forget them meanwhile
        if found is None:
            assert self.remake is not None
            named = Names(self.remake()).tensors
            parts = [named[b.name].detach().float().reshape(-1) for b in self.blocks]
            self._initial = found = torch.cat(parts).numpy()
        return found

    def forget(self) -> None:
        """Let go of a large model's own values; whoever asks for them again, has them made anew."""
        if self.remake is not None and self.flat.nbytes >= FORGOTTEN_BYTES:
            self._initial = None

    def _take(self, name: str, tensor: Tensor, rebound: frozenset[str]) -> None:
        """Move one tensor into the vector, behind those that are there."""
        start = self.blocks[-1].where.stop if self.blocks else 0
        where = slice(start, start + tensor.numel())
        self.flat[where] = tensor.detach().reshape(-1)
        trained = isinstance(tensor, nn.Parameter)
        block = Block(name, tensor.shape, where, tensor, trained, tensor.dtype)
        self.blocks.append(block)
        if not tensor.is_floating_point() or name in rebound:
            path, _, attribute = name.rpartition(".")
            self.loose.append(Loose(block, self.module.get_submodule(path), attribute))
            return
        tensor.data = self.flat[where].view(tensor.shape)
        if trained:
            tensor.grad = self.grad[where].view(tensor.shape)

    def view(self, part: slice) -> NDArray[Any]:
        """One part of the flat vector as it is: whoever keeps it copies it."""
        values: NDArray[Any] = self.flat[part].detach().cpu().numpy()
        return values

    def give(self) -> Floats32:
        """All values, in the memory where they are: from here on it is the caller's.

        The next who writes into the vector gets other memory for it, if it is still held by then.
        """
        values: Floats32 = self.flat.detach().cpu().numpy()
        self._given = ref(values)  # whoever has a view of it holds it too
        return values

    def rest(self) -> None:
        """Let go of a large model's gradients: they take no memory until somebody writes them."""
        if self.grad.nbytes < FORGOTTEN_BYTES:
            return
        self.grad = untouched(self.whole.stop, self.device)
        for b in self.blocks:
            if b.trained:
                b.tensor.grad = self.grad[b.where].view(b.shape)

    def own(self, copy: bool = True) -> None:
        """Have memory of its own again, with the same values in it if these are needed."""
        held, self._given = self._given is not None and self._given() is not None, None
        if not held:
            return
        before, self.flat = self.flat, torch.empty_like(self.flat)
        if copy:
            self.flat.copy_(before)
        bound = {id(one.block.tensor) for one in self.loose}
        for b in self.blocks:
            if id(b.tensor) not in bound:
                b.tensor.data = self.flat[b.where].view(b.shape)

    @cached_property
    def decay(self) -> Tensor:
        """1 where weight decay applies, else 0."""
        found = untouched(self.whole.stop, self.device)
        for b in self.blocks:
            if b.trained and is_weight(b.name, b.tensor):
                found[b.where] = 1.0
        return found

    def weights_of(self, part: slice) -> Tensor | list[slice]:
        """The places of weight decay within a part; of a large one not as numbers of its size."""
        if part.stop - part.start < LARGE_MODEL:
            return self.decay[part]
        own = (b for b in self.blocks if part.start <= b.where.start and b.where.stop <= part.stop)
        decayed = [b.where for b in own if b.trained and is_weight(b.name, b.tensor)]
        return [slice(w.start - part.start, w.stop - part.start) for w in decayed]

    # -- its values --------------------------------------------------------------------------

    def set(self, part: slice, values: Floats32 | Tensor) -> None:
        """Overwrite one part of the flat vector."""
        wanted = self.flat[part].shape
        if tuple(values.shape) != tuple(wanted):
            raise ModelError(
                f"parameters of shape {tuple(values.shape)} given, {tuple(wanted)} wanted: "
                "they are those of another model."
            )
        self.own(copy=part != self.whole)
        if isinstance(values, np.ndarray) and self.device.type == "cpu":
            self.flat.numpy()[part] = values  # what cannot be written to may be read
        else:
            given = (
                torch.from_numpy(np.array(values, np.float32))
                if isinstance(values, np.ndarray)
                else values
            )
            self.flat[part].copy_(given)
        self.lend()

    def get(self, part: slice) -> Floats32:
        """A copy of one part of the flat vector."""
        copy: Floats32 = self.flat[part].detach().cpu().numpy().copy()
        return copy

    def blocks_of(self, part: slice) -> Iterator[Block]:
        """The parameters and buffers that lie in one part."""
        return (b for b in self.blocks if part.start <= b.where.start and b.where.stop <= part.stop)

    def tensors(self, part: slice) -> list[Tensor]:
        """The tensors of one part, as the module has them now."""
        loose = {one.block.name: one.owner._buffers[one.attribute] for one in self.loose}
        found = (loose.get(b.name, b.tensor) for b in self.blocks_of(part))
        return [tensor for tensor in found if tensor is not None]

    def named(self, flat: NDArray[Any], part: slice | None = None) -> Arrays:
        """One part's flat values as arrays with the names and shapes of the state dict."""
        part = part or self.whole
        flat = np.asarray(flat, dtype=np.float32)
        if flat.shape != (part.stop - part.start,):
            raise ModelError(
                f"{flat.size} parameters given, the model has {part.stop - part.start} here."
            )
        return {
            b.name: as_block(flat[b.where.start - part.start : b.where.stop - part.start], b)
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

    # -- the module --------------------------------------------------------------------------

    def activate(self, part: slice) -> None:
        """Let only `part` require gradients: no work is done for what is frozen."""
        self.own()
        if self.active != part:
            for b in self.blocks:
                if b.trained:
                    inside = part.start <= b.where.start and b.where.stop <= part.stop
                    b.tensor.requires_grad_(inside)
            self.active = part

    def lend(self) -> None:
        """Give the module the buffers that are no views, as the vector has them."""
        for one in self.loose:
            b = one.block
            values = self.flat[b.where].view(b.shape)
            values = values.round() if not b.dtype.is_floating_point else values
            one.owner._buffers[one.attribute] = values.detach().to(b.dtype, copy=True)

    def take_back(self) -> None:
        """Take over what a pass made of them."""
        if self.loose:
            self.own()
        with torch.no_grad():
            for one in self.loose:
                now = one.owner._buffers[one.attribute]
                assert now is not None
                self.flat[one.block.where].copy_(now.detach().reshape(-1))

    def gather(self) -> None:
        """Take in what somebody else did to the module: where its tensors are, what is frozen."""
        self.own()
        bound = {id(one.block.tensor) for one in self.loose}
        for b in self.blocks:
            if id(b.tensor) in bound:
                continue
            values = b.tensor.data
            if values.data_ptr() != self.flat[b.where].data_ptr():  # moved to a device, or replaced
                self.flat[b.where] = values.detach().reshape(-1).to(self.flat)
                b.tensor.data = self.flat[b.where].view(b.shape)
            if b.trained:
                b.tensor.grad = self.grad[b.where].view(b.shape)
        self.take_back()
        self.active = None

    def whole_state(self, named: Mapping[str, NDArray[Any]]) -> Arrays:
        """A state dict, as far as it is known: some values by name, and what is fixed.

        Tensors that have several names have each of them.
        """
        known = {**named, **self.fixed.arrays}
        first = {id(b.tensor): b.name for b in self.blocks}
        for name, tensor in self.module.state_dict(keep_vars=True).items():
            own = first.get(id(tensor), "")
            if name not in known and own in named:
                known[name] = named[own]
        return known


def as_block(values: NDArray[Any], block: Block) -> NDArray[Any]:
    """Flat values (..., n) as a block has them: counters are whole numbers."""
    shaped = values.reshape((*values.shape[:-1], *block.shape))
    if block.dtype == torch.float32:
        return shaped
    kind = torch.empty(0, dtype=block.dtype).numpy().dtype
    whole = np.rint(shaped) if kind.kind in "iub" else shaped
    return np.asarray(whole, kind)


def untouched(size: int, device: torch.device) -> Tensor:
    """Zeros that take no memory before they are written to."""
    if device.type != "cpu":
        return torch.zeros(size, device=device)
    if 4 * size < FORGOTTEN_BYTES:
        return torch.from_numpy(np.zeros(size, np.float32))
    # Of blocks below 32 MB malloc may give some that were used, and has to write the zeros.
    own = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    return torch.from_numpy(np.frombuffer(mmap.mmap(-1, 4 * size, **own), np.float32))


def is_weight(name: str, tensor: Tensor) -> bool:
    """Tell whether weight decay applies: to weights, not to biases."""
    return name.rpartition(".")[2] != "bias" and (tensor.dim() > 1 or "bias" not in name)
