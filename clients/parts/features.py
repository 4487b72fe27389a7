"""Features of a frozen part of a model: computed once, and held at the node."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from corsage.networks.network import Network
from corsage.networks.outputs import chunks

BYTES = 256 * 2**20
"""What the features that a process holds take together at most; others are computed again."""


class Features:
    """The features of a node's users, by whatever names them."""

    taken: ClassVar[int] = 0

    def __init__(self) -> None:
        self._found: dict[Hashable, Tensor] = {}

    def get(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """The features of one user's samples."""
        if key in self._found:
            return self._found[key]
        found = make()
        size = found.numel() * found.element_size()
        if Features.taken + size <= BYTES:
            Features.taken += size
            self._found[key] = found
        return found

    def __del__(self) -> None:
        type(self).taken -= sum(t.numel() * t.element_size() for t in self._found.values())


class FeaturesByModel:
    """The features that each model has; those of a model that is gone go with it."""

    def __init__(self) -> None:
        self._found = WeakKeyDictionary[Network, Features]()

    def of(self, network: Network) -> Features:
        """Those of a model."""
        return self._found.setdefault(network, Features())


class HeldFeatures:
    """The features of what was asked for last; those of another body are let go."""

    def __init__(self) -> None:
        self._key: Hashable = None
        self._held = Features()

    def of(self, key: Hashable) -> Features:
        """Those under a name, which are none if another was asked for since."""
        if key != self._key:
            self._key, self._held = key, Features()
        return self._held


@torch.no_grad()
def features_of(network: Network, x: Tensor) -> Tensor:
    """What the frozen front makes of one user's samples: alike, whoever else is at the node."""
    return chunks(network.rear.in_front_of, x)
