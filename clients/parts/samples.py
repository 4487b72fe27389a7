"""The samples of a node's users, as a client trains and judges on them, and their batches."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from corsage.core.arrays import Array, Ints
from corsage.core.cache import Cache
from corsage.core.errors import UserError
from corsage.core.seeding import generator
from corsage.datasets.user_data import FederatedData, UserData
from corsage.networks.batches import Examples, Order, Units
from corsage.networks.network import Network
from corsage.networks.training import Types, batches, steps_of, to_tensors
from corsage.networks.user_scores import chunks
from corsage.strategies.effort import whole_steps

if TYPE_CHECKING:
    from corsage.clients.base import Client

T = TypeVar("T", bound=tuple[Any, ...])
Rows = tuple[Array, Array, Ints]
"""Inputs and labels of users, one after the other, and how many each of them has."""


@dataclass(frozen=True)
class Samples:
    """The samples of some users.

    Parameters
    ----------
    users, data : who they are, and the node's data.
    full, network : the whole model, and what trains of it.
    seed : the run's.
    cache : what the node prepared in earlier messages.
    """

    users: Sequence[str]
    data: FederatedData
    full: Network
    network: Network
    seed: int
    cache: Cache

    def training(self, limit: int) -> Rows:
        """The users' training samples, at most a limit, and how many each has."""
        if limit:
            return self.some(limit)
        return self._known(lambda: self.data.part(self.users, False), least=1)

    def labels(self, limit: int) -> tuple[Array, Ints]:
        """Their labels alone."""
        if limit:
            return self.some(limit)[1:]
        rows, sizes = self._known(lambda: self.data.rows(self.users, test=False), least=1)
        return self.data.y[rows], sizes

    def test(self) -> Rows:
        """All test samples of the users."""
        return self._known(lambda: self.data.part(self.users, True))

    def some(self, limit: int) -> Rows:
        """So many training samples of each user, drawn by the seed."""
        x, y = [], []
        for own in map(self.user, self.users):
            n = len(own.y_train)
            if not n:
                raise UserError(own.user, "load", "no samples")
            rows = generator(self.seed, "new user's samples", own.user).permutation(n)[:limit]
            x.append(own.x_train[np.sort(rows)])
            y.append(own.y_train[np.sort(rows)])
        return np.concatenate(x), np.concatenate(y), np.array([len(own) for own in y], np.int64)

    def _known(self, get: Callable[[], T], least: int = 0) -> T:
        """Get arrays of the users out of the data, of whom each has at least so many samples."""
        try:
            found = get()
        except KeyError:
            for user in self.users:
                self.user(user)  # says which one is not here
            raise
        for place in np.flatnonzero(found[-1] < least):
            raise UserError(self.users[int(place)], "load", "no samples")
        return found

    def user(self, user: str) -> UserData:
        """The data of one user, or UserError with the reason why they cannot be loaded."""
        try:
            return self.data[user]
        except Exception as error:
            raise UserError(user, "load", str(error)) from error

    def examples(self, x: Array, y: Array, sizes: Ints, part: str, types: Types) -> Examples:
        """Samples of the users, one after the other, as `network` takes them.

        `part` names them among what a user has; without a name they are as the whole model takes
        them, whatever of it is frozen.
        """
        units = units_of(self.data, self.users)
        if not part or self.network is self.full:
            return Examples(*self.tensors(x, y, types), sizes, units=units)
        own = zip(self.users, np.split(x, np.cumsum(sizes)[:-1]), strict=True)
        features = torch.cat([self.features(user, part, piece, types) for user, piece in own])
        targets = self.tensors(np.zeros(0), y, types)[1]
        return Examples(features, targets, sizes, units=units)

    def tensors(self, x: Array, y: Array, types: Types) -> tuple[Tensor, Tensor]:
        """Samples and labels as the model takes them."""
        if self.data.vectors is not None and len(x):
            x = self.data.vectors[x]
        shift, scale = self.data.shift, self.data.scale
        return to_tensors(x, y, shift, scale, self.full.device, types)

    def features(self, user: str, part: str, x: Array, types: Types) -> Tensor:
        """Features of some of a user's samples by the frozen front, computed once."""
        key = id(self.data), self.seed, user, part
        held = self.cache.get("features", FeaturesByModel).of(self.full)
        labels = np.zeros(len(x), np.int64)
        return held.get(key, lambda: features_of(self.full, self.tensors(x, labels, types)[0]))


def units_of(data: FederatedData, users: Sequence[str]) -> Units | None:
    """Mean and scale of each user's labels; None if they are as they were."""
    agreed, own = data.preparation, data.own
    if agreed is None or not agreed.numbers:
        return None
    if own is None:
        one = np.array([agreed.label.mean, agreed.label.scale])
        return Units(*np.repeat(one[:, None], len(users), axis=1))
    return Units(*own.label[[data.index[user] for user in users]].T)


FEATURE_BYTES = 256 * 2**20
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
        if Features.taken + size <= FEATURE_BYTES:
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


@torch.no_grad()
def features_of(network: Network, x: Tensor) -> Tensor:
    """Features of one user's samples by the frozen front: alike, whoever else is at the node."""
    return chunks(network.rear.in_front_of, x)


def orders_of(
    client: Client[Any], purpose: str, sizes: Ints, epochs: int, steps: int
) -> list[Order]:
    """The batches of each user of a client, who have so many samples.

    In a training round they are as many as the work that all methods do leaves.
    """
    task, size, join = client.task, client.settings.batch_size, client.network.batch_statistics
    orders: list[Order] = []
    for user, n in zip(client.users, sizes.tolist(), strict=True):
        rng, each = generator(task.seed, purpose, task.round, user), steps_of(n, size, join)
        due = steps or epochs * each
        if client.pace:
            due = whole_steps(client.pace * epochs, task.round)
        elif client.effort != 1.0:
            due = whole_steps(client.effort * due, task.round)
        orders.append(batches(rng, n, -(-due // each), size, join)[:due])
    return orders
