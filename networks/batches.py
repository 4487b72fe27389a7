"""The data of many users as flat arrays with offsets, and their batches step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from corsage.core.arrays import Floats, Ints

if TYPE_CHECKING:
    from corsage.networks.augment import Views
    from corsage.networks.training_objective import Objective

Order = Sequence[Ints]
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A loss of (features, outputs, labels) of a batch, where a method has one of its own."""
Mean = Callable[[Tensor, Tensor], Tensor]
"""The mean loss of a batch's (outputs, labels)."""
Change = Callable[[Tensor, int], Tensor]
"""A batch's inputs as a step sees them."""


def on_device(x: Tensor, device: str | torch.device) -> Tensor:
    """A tensor of the host's there; to a GPU out of pinned memory, and nobody waits for it."""
    if torch.device(device).type != "cuda" or x.device.type != "cpu":
        return x.to(device)
    return x.pin_memory().to(device, non_blocking=True)


def steps_on(order: Order, device: torch.device) -> Sequence[Tensor]:
    """The row numbers of each step there, by one copy."""
    rows = on_device(torch.from_numpy(np.concatenate([*order, np.zeros(0, np.int64)])), device)
    return torch.split(rows, [len(batch) for batch in order])


@dataclass(frozen=True)
class Units:
    """Units of labels that were standardised: `label * scale + mean`, by user."""

    mean: Floats
    scale: Floats


@dataclass(frozen=True)
class Examples:
    """All users' examples of a node, one user after the other: `sizes[u]` belong to user u.

    `losses` are the users' own, if the method has any, of outputs for features that `into_head` may
    change; else the network's criterion is trained, or what `objective` makes of it with smoothed
    labels or weighted classes. `units` are those of labels that were standardised numbers, `views`
    are the changes of images at each step.
    """

    x: Tensor
    y: Tensor
    sizes: Ints
    losses: Sequence[Loss] | None = None
    into_head: Sequence[Callable[[Tensor], Tensor]] | None = None
    units: Units | None = None
    objective: Objective | None = None
    views: Views | None = None

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
        """A standardised label of 1 in the labels' own unit, by user."""
        return np.ones(len(self)) if self.units is None else self.units.scale

    @cached_property
    def offsets(self) -> Ints:
        """The first row of each user's examples."""
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)

    def user(self, u: int) -> tuple[Tensor, Tensor]:
        """One user's examples, as views."""
        where = slice(int(self.offsets[u]), int(self.offsets[u] + self.sizes[u]))
        return self.x[where], self.y[where]

    def __len__(self) -> int:
        """The number of users."""
        return len(self.sizes)

    @property
    def usual(self) -> bool:
        """Tell whether the criterion is trained on the samples as they are."""
        return self.losses is None and self.objective is None and self.views is None

    def on(self, purpose: str) -> Examples:
        """The same examples for a training of their own: images are changed by other draws."""
        return self if self.views is None else replace(self, views=self.views.on(purpose))

    def mean_of(self, u: int, usual: Mean) -> Mean:
        """One user's mean loss of a batch (outputs, labels)."""
        return usual if self.objective is None else self.objective.mean_of(u)

    def change_of(self, u: int, order: Order, stream: int = 0) -> Change | None:
        """The change of one user's batches (inputs, step), if there is any."""
        if self.views is None:
            return None
        views, drawn = self.views, self.views.draws(u, order, stream)
        draws = [on_device(torch.from_numpy(step), self.x.device) for step in drawn]
        return lambda x, step: views.apply(x, draws[step])

    def draws_of(
        self, users: Sequence[int], orders: Sequence[Order], stream: int = 0
    ) -> list[Tensor] | None:
        """For each step the draws of some users' samples (users, batch, 3), short ones filled up.

        The users have ever fewer steps, as those of a `Plan`.
        """
        if self.views is None:
            return None
        each = [self.views.draws(u, orders[u], stream) for u in users]
        width = max((len(batch) for u in users for batch in orders[u]), default=0)
        found = []
        for s in range(len(each[0]) if each else 0):
            step = np.zeros((len(users), width, 3), np.int64)
            for i, draws in enumerate(each):
                if s < len(draws):
                    step[i, : len(draws[s])] = draws[s]
            found.append(on_device(torch.from_numpy(step), self.x.device))
        return found


@dataclass(frozen=True)
class Plan:
    """The batches of several users, aligned by step; users with more steps come first.

    At step s users [:active[s]] still train. `rows[s, u]` are rows of `Examples.x`; a short batch
    is filled up with the user's own first row at weight 0. `weights` is 1/(batch's true size), or
    None at steps at which all batches are full. `lengths[s]` are the users' true sizes, which no
    device has to be asked for.
    """

    users: list[int]
    rows: Tensor
    weights: list[Tensor | None]
    active: list[int]
    lengths: list[list[int]]

    def to(self, device: torch.device) -> Plan:
        """The plan where the samples are: one copy, so that no step waits for its own."""
        if self.rows.device == device:
            return self
        weights = [None if w is None else on_device(w, device) for w in self.weights]
        return replace(self, rows=on_device(self.rows, device), weights=weights)

    def sizes(self, step: int) -> list[int]:
        """The sizes of the users' batches, without the samples that fill them up."""
        return self.lengths[step]

    def alike(self, step: int) -> list[tuple[slice, int]]:
        """Runs of users with batches of one size at a step, and that size."""
        sizes, active = self.sizes(step), self.active[step]
        ends = [i for i in range(1, active) if sizes[i] != sizes[i - 1]]
        return [(slice(i, j), sizes[i]) for i, j in pairwise([0, *ends, active])]

    @classmethod
    def build(cls, orders: Sequence[Order], offsets: Ints, users: Sequence[int]) -> Plan:
        """The plan for `users` (numbers into `orders`), which it sorts by their steps."""
        users = sorted(users, key=lambda u: (-len(orders[u]), -sum(map(len, orders[u]))))
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
        held = [counts[s, :a].tolist() for s, a in enumerate(active)]
        return cls(users, torch.from_numpy(rows), per_step, active, held)
