"""Images changed at each step: shifted with zeros coming in, turned left to right.

What is drawn depends on the seed, the purpose, the round and the user, and in that on the step and
the sample, and on nothing else: so it is the same on any engine, and however users are grouped.
torchvision's RandomCrop(size, padding) and RandomHorizontalFlip do the same to an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from corsage.core.arrays import Ints, PerChannel, along_channels
from corsage.core.configuration.train_keys import TrainKeys
from corsage.core.errors import ModelError
from corsage.core.seeding import generator
from corsage.networks.batches import Order

Units = tuple[PerChannel, PerChannel]
"""Shift and scale of raw samples."""


@dataclass(frozen=True)
class Views:
    """The changes of the users' training images.

    Parameters
    ----------
    kinds, padding : the keys `augment` and `augment-padding`.
    seed, purpose, round, users : what the draws are for.
    zero : what a pixel of 0 is after scaling, (channels, 1, 1) or one number.
    """

    kinds: tuple[str, ...]
    padding: int
    seed: int
    round: int
    users: tuple[str, ...]
    zero: Tensor
    purpose: str = ""

    def on(self, purpose: str) -> Views:
        """The same for another purpose: other draws."""
        return replace(self, purpose=purpose)

    def draws(self, user: int, order: Order, stream: int = 0) -> list[Ints]:
        """For each step of a user its samples' (down, right, turned), (batch, 3)."""
        words = ("augment", self.purpose, stream, self.round, self.users[user])
        sizes = [len(batch) for batch in order]
        rng, total = generator(self.seed, *words), sum(sizes)
        found = np.zeros((total, 3), np.int64)
        # A number a sample after the other: fewer steps see the same as the first of more.
        drawn = rng.random((total, 3))
        if "crop" in self.kinds:
            found[:, :2] = (drawn[:, :2] * (2 * self.padding + 1)).astype(np.int64) - self.padding
        if "flip" in self.kinds:
            found[:, 2] = drawn[:, 2] < 0.5
        return np.split(found, np.cumsum(sizes)[:-1])

    def apply(self, x: Tensor, draws: Ints | Tensor) -> Tensor:
        """Images (n, channels, height, width), each moved and turned as drawn."""
        moves = torch.as_tensor(draws, device=x.device)
        _, _, height, width = x.shape
        rows = torch.arange(height, device=x.device) + moves[:, :1]
        columns = torch.arange(width, device=x.device).expand(len(x), -1)
        columns = torch.where(moves[:, 2:] > 0, width - 1 - columns, columns) + moves[:, 1:2]
        inside = within(rows, height).unsqueeze(2) & within(columns, width).unsqueeze(1)
        which = torch.arange(len(x), device=x.device).view(-1, 1, 1)
        down = rows.clamp(0, height - 1).unsqueeze(2)
        right = columns.clamp(0, width - 1).unsqueeze(1)
        picked = x[which, :, down, right].permute(0, 3, 1, 2)
        return torch.where(inside.unsqueeze(1), picked, self.zero.to(x))


def within(places: Tensor, size: int) -> Tensor:
    """Tell which places are in the image."""
    return (places >= 0) & (places < size)


def views_of(
    keys: TrainKeys, seed: int, number: int, users: Sequence[str], units: Units, x: Tensor
) -> Views:
    """The views by the keys, for users' samples `x`; what comes in is a raw 0 in their units."""
    check_images(keys, tuple(x.shape[1:]))
    black = -along_channels(units[0]) * along_channels(units[1])
    zero = torch.as_tensor(np.asarray(black))
    return Views(keys.augment, keys.augment_padding, seed, number, tuple(users), zero)


def check_images(keys: TrainKeys, shape: Sequence[int]) -> None:
    """Refuse to change what are no images."""
    if keys.augment and len(shape) != 3:
        raise ModelError(
            f"augment={','.join(keys.augment)}: it is for images (channels, height, width), the "
            f"samples are of shape {tuple(shape)}; leave it out."
        )
