"""Losses of linear models on users' ragged samples: what does not depend on the loss.

Users have as many samples as they have: they lie in blocks of users with about as many (`padded`),
without a loop over users.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import Generic, Literal, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from corsage.core.arrays import Ints
from corsage.core.errors import DataError
from corsage.solvers.losses.padded import cut
from corsage.solvers.losses.users_newton import TOLERANCE

Scale = Literal["sum", "mean"]


class Block(Protocol):
    """The losses f_i of users with about as many samples."""

    @property
    def smoothness(self) -> Tensor:
        """L_i."""

    def value(self, x: Tensor) -> Tensor:
        """f_i(x_i)."""

    def gradient(self, x: Tensor) -> Tensor:
        """nabla f_i(x_i)."""

    def hessian(self, x: Tensor) -> Tensor:
        """An element of the generalised Hessian."""

    def trace(self, x: Tensor) -> Tensor:
        """Its trace."""

    def above(self, x: Tensor) -> Tensor:
        """The Hessian of a quadratic through f_i(x_i), with its gradient, that f_i is below."""

    def minimise(self, slope: Tensor, start: Tensor) -> Tensor:
        """argmin f_i(x) + <slope_i, x>; NaN if none is found."""


B = TypeVar("B", bound=Block)


class Ragged(Generic[B]):
    """f_i(x_i) = sum or mean over i's samples of a loss of a linear model, + ridge.

    Parameters
    ----------
    features : (N, p), one user's samples after the other's; sets dtype and device.
    labels : (N,).
    sizes : (n,) how many samples each user has, at least one.
    scale : sum or mean over a user's samples.
    ridge : weight of the squared parameters.
    intercept : whether there is one.
    outputs : numbers that the model says of a sample.
    """

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        sizes: ArrayLike,
        *,
        scale: Scale,
        ridge: float = 0.0,
        intercept: bool = True,
        outputs: int = 1,
    ) -> None:
        self.features, self.labels = features, labels
        self.counts: Ints = np.asarray(sizes, np.int64)
        self.scale, self.ridge, self.intercept = scale, ridge, intercept
        self.n, self.d = len(self.counts), outputs * (features.shape[1] + intercept)
        self.dtype, self.device = features.dtype, features.device
        _check(features, labels, self.counts)

    @abstractmethod
    def _block(self, users: Ints) -> B:
        """The block of these users."""

    @cached_property
    def _cuts(self) -> list[Ints]:
        """The users of each block."""
        return cut(self.counts, self.d, self.device)

    @cached_property
    def _blocks(self) -> list[B]:
        """Rows of users with about as many: who only predicts needs none."""
        return [self._block(users) for users in self._cuts]

    @cached_property
    def _order(self) -> tuple[Tensor, Tensor, list[int]]:
        """Users as the blocks have them, the way back, and where blocks begin and end."""
        order = torch.from_numpy(np.concatenate(self._cuts)).to(self.device)
        return order, order.argsort(), np.cumsum([0, *map(len, self._cuts)]).tolist()

    def _shares(self, sizes: Ints) -> Tensor:
        """The weights of users' sums, by their samples."""
        count = torch.from_numpy(sizes).to(self.features)
        return 1 / count if self.scale == "mean" else torch.ones_like(count)

    def _samples(self, users: Ints) -> Tensor:
        """The numbers of these users' samples."""
        sizes, first = self.counts[users], np.cumsum(self.counts) - self.counts
        begin = first[users] - (np.cumsum(sizes) - sizes)
        rows = np.repeat(begin, sizes) + np.arange(int(sizes.sum()))
        return torch.from_numpy(rows).to(self.device)

    def _rows(self, features: Tensor) -> Tensor:
        """Features, and the 1 that b is multiplied with."""
        if not self.intercept:
            return features
        return torch.cat([features, features.new_ones(len(features), 1)], 1)

    def _chosen(self, chosen: Ints) -> tuple[Tensor, Tensor]:
        """The row and the label of one sample of each user."""
        rows = torch.from_numpy(np.cumsum(self.counts) - self.counts + chosen).to(self.device)
        return self._rows(self.features[rows]), self.labels[rows]

    def _times(self) -> Tensor:
        """The factor of a single sample's loss, for their mean to be f_i (n,)."""
        count = torch.from_numpy(self.counts).to(self.features)
        return count if self.scale == "sum" else torch.ones_like(count)

    def _longest(self) -> float:
        """The largest |a|^2 of a sample, times what its loss is multiplied by."""
        counts = torch.from_numpy(self.counts).to(self.device)
        squares = (self.features**2).sum(1) + float(self.intercept)
        return float((squares * self._times().repeat_interleave(counts)).max())

    def _run(self, method: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
        """method(block, its users' rows of the arguments) for all blocks, users in their order."""
        if len(self._blocks) == 1:
            return method(self._blocks[0], *arguments)
        order, back, spans = self._order
        rows = [argument.index_select(0, order) for argument in arguments]
        parts = [
            method(block, *(argument[first:last] for argument in rows))
            for block, (first, last) in zip(self._blocks, pairwise(spans), strict=True)
        ]
        return torch.cat(parts).index_select(0, back)

    def value(self, x: Tensor) -> Tensor:
        """f_i(x_i)."""
        return self._run(lambda block, own: block.value(own), x)

    def gradient(self, x: Tensor) -> Tensor:
        """nabla f_i(x_i)."""
        return self._run(lambda block, own: block.gradient(own), x)

    def hessian(self, x: Tensor) -> Tensor:
        """An element of the generalised Hessian."""
        return self._run(lambda block, own: block.hessian(own), x)

    def trace(self, x: Tensor) -> Tensor:
        """The traces of the Hessians (n,)."""
        return self._run(lambda block, own: block.trace(own), x)

    def above(self, x: Tensor) -> Tensor:
        """The Hessians of quadratics through f_i(x_i), with its gradient, that f_i is below."""
        return self._run(lambda block, own: block.above(own), x)

    def _nearer(self, centre: Tensor, kappa: Tensor) -> Tensor:
        """The centre or 0, where the function of the prox is less: with little kappa often 0."""
        zero = torch.zeros_like(centre)
        worse = self.value(centre) > self.value(zero) + kappa / 2 * centre.square().sum(1)
        return torch.where(worse[:, None], zero, centre)

    @cached_property
    def _smoothness(self) -> Tensor:
        return self._run(lambda block: block.smoothness)

    def smoothness(self) -> Tensor:
        """L_i: the largest eigenvalue of the bound on the Hessian (d > 500: the trace)."""
        return self._smoothness

    def _minimised(self, slope: Tensor | None, start: Tensor | None) -> Tensor:
        """argmin f_i(x) + <slope_i, x>, from `start` (default 0) on."""
        zero = self.features.new_zeros(self.n, self.d)
        slope, start = zero if slope is None else slope, zero if start is None else start
        return self._run(lambda block, *own: block.minimise(*own), slope, start)


def _check(features: Tensor, labels: Tensor, counts: Ints) -> None:
    """Data that fit together."""
    if features.dtype not in TOLERANCE:
        raise DataError(f"features are {features.dtype}: give float32 or float64.")
    if not len(counts) or counts.min() < 1:
        raise DataError("linear losses: there must be users, each with a sample or more.")
    if not counts.sum() == len(features) == len(labels):
        raise DataError(
            f"linear losses: {len(features)} features, {len(labels)} labels, sizes for "
            f"{counts.sum()}: give one of each for every sample."
        )
