"""Ragged rows of many users as padded blocks, in the layout that a loop over them is fastest in.

Users are sorted by how many rows they have and cut into blocks of like sizes; what is missing in a
block is rows of zeros, which add nothing to a gradient. A block fits in the processor's cache. In
large blocks of few columns the users come last (`Narrow`): products are elementwise, over long
contiguous runs, and more than twice as fast as those of many tiny matrices, which win with more
columns, and with few users, for whom the number of calls counts (`Wide`).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from corsage.core.arrays import Ints

NARROW = 8  # columns up to which elementwise products are faster, from MANY numbers on
MANY = 8_000
LARGE = 100_000  # numbers in a block, at most (but for a user with more)
LARGE_GPU = 20_000_000
SMALL = 24_000  # a block with fewer is not cut to save zeros
FILLED = 0.85  # a user with fewer rows than that share of the block's longest begins another one


class Padded(Protocol):
    """Rows a_j of the users of a block. Arrays of a number a row have `shape`, rows along `axis`.

    Parameters
    ----------
    axis : the rows' axis.
    shape : of an array with one number for each row, zeros included.
    """

    axis: int
    shape: tuple[int, int]

    def scores(self, x: Tensor) -> Tensor:
        """<a_j, x_i> for all rows j of all users i, for x (users, d)."""

    def combine(self, weights: Tensor) -> Tensor:
        """Sum over a user's rows of weight_j a_j, (users, d)."""

    def gram(self, weights: Tensor) -> Tensor:
        """Sum over a user's rows of weight_j a_j a_j', (users, d, d)."""

    def lengths(self, unit: Tensor) -> Tensor:
        """|unit_i a_j|, coordinate by coordinate, for all rows of all users."""


class Narrow:
    """Few columns: the users' axis is the last."""

    axis = 0

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows.permute(2, 1, 0).contiguous()
        self.shape = (rows.shape[1], rows.shape[0])

    def scores(self, x: Tensor) -> Tensor:
        """<a_j, x_i>."""
        first, *others = x.T.contiguous()
        scores: Tensor = self._rows[0] * first
        for row, own in zip(self._rows[1:], others, strict=True):
            scores.addcmul_(row, own)
        return scores

    def combine(self, weights: Tensor) -> Tensor:
        """Sum of weight_j a_j."""
        return (self._rows * weights).sum(1).T

    def gram(self, weights: Tensor) -> Tensor:
        """Sum of weight_j a_j a_j', a row at a time."""
        d, _, users = self._rows.shape
        out = weights.new_empty(d, d, users)
        weighted = self._rows * weights
        for j in range(d):
            out[j, j:] = out[j:, j] = (weighted[j] * self._rows[j:]).sum(1)
        return out.permute(2, 0, 1).contiguous()

    def lengths(self, unit: Tensor) -> Tensor:
        """|unit_i a_j|."""
        lengths: Tensor = (self._rows * unit.T[:, None]).norm(dim=0)
        return lengths


class Wide:
    """Many columns: a matrix a user."""

    axis = 1

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows
        self.shape = (rows.shape[0], rows.shape[1])

    def scores(self, x: Tensor) -> Tensor:
        """<a_j, x_i>."""
        return torch.bmm(self._rows, x[:, :, None])[:, :, 0]

    def combine(self, weights: Tensor) -> Tensor:
        """Sum of weight_j a_j."""
        return torch.bmm(weights[:, None], self._rows)[:, 0]

    def gram(self, weights: Tensor) -> Tensor:
        """Sum of weight_j a_j a_j'."""
        return torch.bmm((self._rows * weights[:, :, None]).mT, self._rows)

    def lengths(self, unit: Tensor) -> Tensor:
        """|unit_i a_j|."""
        lengths: Tensor = (self._rows * unit[:, None]).norm(dim=2)
        return lengths


def cut(sizes: Ints, columns: int, device: torch.device) -> list[Ints]:
    """The users of each block; as they come if one block holds them all."""
    large = LARGE if device.type == "cpu" else LARGE_GPU
    order = np.argsort(-sizes, kind="stable")
    falling, blocks, first = -sizes[order].astype(np.float64), [], 0
    while first < len(order):
        longest = max(int(sizes[order[first]]) * columns, 1)
        uneven = int(np.searchsorted(falling, FILLED * falling[first], "right")) - first
        last = first + max(1, min(large // longest, max(uneven, -(-SMALL // longest))))
        blocks.append(order[first:last])
        first = last
    return blocks if len(blocks) > 1 else [np.arange(len(sizes))]


def cells(sizes: Ints) -> tuple[Ints, Ints]:
    """The user and the number of each row, for rows that lie one user after the other."""
    user = np.repeat(np.arange(len(sizes)), sizes)
    return user, np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def pad(rows: Tensor, sizes: Ints) -> Tensor:
    """Rows (N, ...) that lie one user after the other as (users, longest, ...), zeros behind."""
    out = rows.new_zeros(len(sizes), int(sizes.max()), *rows.shape[1:])
    out[tuple(torch.from_numpy(index).to(rows.device) for index in cells(sizes))] = rows
    return out


def padded(rows: Tensor) -> Padded:
    """The faster layout for rows (users, longest, d)."""
    if rows.shape[2] <= NARROW and rows.numel() >= MANY:
        return Narrow(rows)
    return Wide(rows)
