"""The data of many users as flat arrays with offsets, and their batches step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from corsage.core.arrays import Floats, Ints

Order = Sequence[Ints]
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A loss of (features, outputs, labels) of a batch, where a method has one of its own."""


@dataclass(frozen=True)
class Units:
    """What labels that were standardised are in their own unit: `label * scale + mean`, by user."""

    mean: Floats
    scale: Floats


@dataclass(frozen=True)
class Examples:
    """All users' examples of a node, one user after the other: `sizes[u]` belong to user u.

    `losses` are the users' own, if the method has any; else the network's criterion is trained.
    `units` are those of labels that are numbers, if these were standardised.
    """

    x: Tensor
    y: Tensor
    sizes: Ints
    losses: Sequence[Loss] | None = None
    units: Units | None = None

    @classmethod
    def join(cls, users: Sequence[tuple[Tensor, Tensor]]) -> Examples:
        """Examples of users that come as (x, y) pairs; copies them."""
        x, y = zip(*users, strict=True)
        return cls(torch.cat(x), torch.cat(y), np.array([len(part) for part in y], np.int64))

    def over(self, x: Tensor) -> Examples:
        """The same examples with other inputs, such as features."""
        return replace(self, x=x)

    def original(self, values: Tensor) -> Tensor:
        """Labels, or outputs, of all examples in the labels' own unit, in double precision."""
        if self.units is None:
            return values
        mean, scale = (
            torch.from_numpy(np.repeat(each, self.sizes)).to(values.device)
            for each in (self.units.mean, self.units.scale)
        )
        if values.dim() > 1:
            mean, scale = mean[:, None], scale[:, None]
        return values.to(torch.float64) * scale + mean

    def in_their_unit(self) -> Examples:
        """The same examples with labels as they were before they were standardised."""
        return replace(self, y=self.original(self.y), units=None) if self.units else self

    @property
    def unit(self) -> Floats:
        """What a standardised label of 1 is, by user."""
        return np.ones(len(self)) if self.units is None else self.units.scale

    @cached_property
    def offsets(self) -> Ints:
        """Where each user's examples begin."""
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)

    def user(self, u: int) -> tuple[Tensor, Tensor]:
        """One user's examples, as views."""
        where = slice(int(self.offsets[u]), int(self.offsets[u] + self.sizes[u]))
        return self.x[where], self.y[where]

    def __len__(self) -> int:
        """The number of users."""
        return len(self.sizes)


@dataclass(frozen=True)
class Plan:
    """The batches of several users, aligned by step; users with more steps come first.

    At step s users [:active[s]] still train. `rows[s, u]` are rows of `Examples.x`; a short batch
    is filled up with the user's own first row at weight 0. `weights` is 1/(batch's true size), or
    None at steps at which all batches are full.
    """

    users: list[int]
    rows: Tensor
    weights: list[Tensor | None]
    active: list[int]

    @classmethod
    def build(cls, orders: Sequence[Order], offsets: Ints, users: Sequence[int]) -> Plan:
        """The plan for `users` (numbers into `orders`), which it sorts by their steps."""
        users = sorted(users, key=lambda u: -len(orders[u]))
        steps = np.array([len(orders[u]) for u in users], np.int64)
        lengths = [np.array([len(b) for b in orders[u]], np.int64) for u in users]
        total = int(steps.max(initial=0))
        width = max((int(length.max(initial=0)) for length in lengths), default=0)
        rows = np.empty((total, len(users), width), np.int64)
        counts = np.zeros((total, len(users)), np.int64)
        for i, u in enumerate(users):
            rows[:, i] = offsets[u] if steps[i] else 0
            if steps[i]:
                counts[: steps[i], i] = lengths[i]
                filled = np.arange(width) < counts[:, i, None]
                rows[:, i][filled] = np.concatenate(orders[u]) + offsets[u]
        active = [int((steps > s).sum()) for s in range(total)]
        share = 1.0 / np.maximum(counts, 1)[..., None, None]
        weights = (np.arange(width)[:, None] < counts[..., None, None]) * share
        tensor = torch.from_numpy(weights.astype(np.float32))
        short = [bool((counts[s, :a] < width).any()) for s, a in enumerate(active)]
        per_step = [tensor[s, :a] if short[s] else None for s, a in enumerate(active)]
        return cls(users, torch.from_numpy(rows), per_step, active)
