"""The fixed part of a module, which nobody trains: it stays where it is, the same for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from hashlib import blake2b

import numpy as np
from torch import Tensor, nn

from corsage.core.arrays import Arrays
from corsage.core.errors import ModelError


class Fixed:
    """The parameters and buffers of a module that do not travel.

    Parameters
    ----------
    module, tensors : the module, and those of its tensors, by name.
    """

    def __init__(self, module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        self.module, self.tensors = module, dict(tensors)
        self._versions: dict[str, int] = {}

    @property
    def size(self) -> int:
        """The number of its numbers."""
        return sum(tensor.numel() for tensor in self.tensors.values())

    def seal(self) -> None:
        """From here on nothing of it may move."""
        self._versions = {name: tensor._version for name, tensor in self.tensors.items()}

    def check(self) -> None:
        """ModelError if something moved that no training pass moved when it was tried."""
        for name, tensor in self.tensors.items():
            if tensor._version != self._versions[name]:
                raise ModelError(
                    f"{name} changes in training, though it is not trained: leave it alone, or let "
                    "it be trained (requires_grad)."
                )

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """While somebody else trains: buffers get back what was in them, and where it was."""
        devices = {name: tensor.device for name, tensor in self.tensors.items()}
        before = {
            name: tensor.clone()
            for name, tensor in self.tensors.items()
            if not isinstance(tensor, nn.Parameter)
        }
        yield
        for name, tensor in self.tensors.items():
            if tensor.device != devices[name]:
                tensor.data = tensor.data.to(devices[name])
            if name in before and tensor._version != self._versions[name]:
                tensor.copy_(before[name])
                self._versions[name] = tensor._version

    @cached_property
    def arrays(self) -> Arrays:
        """The state dict's part of it, under each of its names."""
        ids = {id(tensor) for tensor in self.tensors.values()}
        state = self.module.state_dict(keep_vars=True).items()
        found = {n: t for n, t in state if isinstance(t, Tensor) and id(t) in ids}
        return {name: tensor.detach().cpu().numpy() for name, tensor in found.items()}

    @cached_property
    def fingerprint(self) -> str:
        """Tells apart fixed parts that are not the same, bit by bit; empty if there is none."""
        digest = blake2b(digest_size=16)
        for name, array in sorted(self.arrays.items()):
            digest.update(f"{name} {array.dtype} {array.shape}\0".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest() if self.arrays else ""
