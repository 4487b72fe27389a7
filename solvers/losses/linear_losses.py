"""Losses of linear models of all users: f_i(theta) = sum or mean of phi(<w, a> + b, y) + ridge.

theta_i = [w, b], as `torch.nn.Linear(p, 1)` is when flattened. Users have as many samples as they
have: they lie in blocks of users with about as many (`padded`), without a loop over users.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from corsage.core.arrays import Ints
from corsage.core.errors import DataError, ModelError
from corsage.core.losses import SQUARED_LOSS, ScalarLoss, sign
from corsage.solvers.losses.linear_block import Block
from corsage.solvers.losses.local_descent import Lanes, fits, in_lanes
from corsage.solvers.losses.padded import cut
from corsage.solvers.losses.quadratic import Quadratic
from corsage.solvers.losses.tied import rooted
from corsage.solvers.losses.users_newton import TOLERANCE

Scale = Literal["sum", "mean"]


class LinearLosses:
    """f_i(theta_i) = sum or mean over i's samples of phi(<w, a> + b, y), + ridge/2 |w|^2.

    Parameters
    ----------
    features : (N, p), one user's samples after the other's; sets dtype and device.
    labels : (N,), classes 0 and 1 if phi is a loss of classes, else numbers.
    sizes : (n,) how many samples each user has, at least one.
    loss : phi.
    scale : sum or mean over a user's samples.
    ridge : weight of |w|^2/2; the intercept b never counts.
    intercept : whether there is a b.
    """

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        sizes: ArrayLike,
        *,
        loss: ScalarLoss,
        scale: Scale,
        ridge: float = 0.0,
        intercept: bool = True,
    ) -> None:
        self.features, self.labels, self.loss = features, labels, loss
        self.counts: Ints = np.asarray(sizes, np.int64)
        self.scale, self.ridge, self.intercept = scale, ridge, intercept
        self.n, self.d = len(self.counts), features.shape[1] + intercept
        self.dtype, self.device = features.dtype, features.device
        _check(self)

    @cached_property
    def _cuts(self) -> list[Ints]:
        """The users of each block."""
        return cut(self.counts, self.d, self.device)

    @cached_property
    def _blocks(self) -> list[Block]:
        """Rows of users with about as many: who only predicts needs none."""
        return [self._block(users) for users in self._cuts]

    @cached_property
    def _order(self) -> tuple[Tensor, Tensor, list[int]]:
        """Users as the blocks have them, the way back, and where blocks begin and end."""
        order = torch.from_numpy(np.concatenate(self._cuts)).to(self.device)
        return order, order.argsort(), np.cumsum([0, *map(len, self._cuts)]).tolist()

    def _block(self, users: Ints) -> Block:
        """The block of these users."""
        sizes = self.counts[users]
        rows = self._samples(users)
        a = self._rows(self.features[rows])
        share = self._shares(sizes)
        return Block(a, self.labels[rows], sizes, self.loss, share, self._ridges())

    def _shares(self, sizes: Ints) -> Tensor:
        """The weights of users' sums, by their samples."""
        count = torch.from_numpy(sizes).to(self.features)
        return 1 / count if self.scale == "mean" else torch.ones_like(count)

    def _ridges(self) -> Tensor:
        """The ridge of each parameter."""
        ridge = self.features.new_full((self.d,), self.ridge)
        if self.intercept:
            ridge[-1] = 0
        return ridge

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
        return self._run(Block.value, x)

    def gradient(self, x: Tensor) -> Tensor:
        """nabla f_i(x_i)."""
        return self._run(Block.gradient, x)

    def descend(self, x: Tensor, k: int, step: float) -> Tensor:
        """x after k steps x_i <- x_i - step nabla f_i(x_i)."""
        if fits(self.features, self.d, self.loss):
            return self._lanes.descend(x, k, step)
        return self._run(lambda block, own: block.descend(own, k, step), x)

    @cached_property
    def _lanes(self) -> Lanes:
        rows = self._rows(self.features)
        if self.loss.classes:
            rows = -sign(self.labels, rows)[:, None] * rows
        share, ridge = self._shares(self.counts), self._ridges()
        return in_lanes(rows, self.labels, self.counts, self.loss, share, ridge)

    def hessian(self, x: Tensor) -> Tensor:
        """An element of the generalised Hessian."""
        return self._run(Block.hessian, x)

    def above(self, x: Tensor) -> Tensor:
        """The Hessians of quadratics through f_i(x_i), with its gradient, that f_i is below."""
        return self._run(Block.above, x)

    @cached_property
    def _smoothness(self) -> Tensor:
        return self._run(lambda block: block.smoothness)

    def smoothness(self) -> Tensor:
        """L_i: the largest eigenvalue of bound sum a a' + ridge (d > 500: the trace)."""
        return self._smoothness

    def convexity(self) -> Tensor:
        """mu_i: of the squared loss the smallest eigenvalue, else the ridge of all coordinates."""
        if self.loss.name == SQUARED_LOSS.name:
            return self.quadratic().convexity()
        return self.features.new_full((self.n,), 0.0 if self.intercept else self.ridge)

    def sample_gradient(self, x: Tensor, chosen: Ints) -> Tensor:
        """nabla f_il(x_i) for one sample l of each user, `chosen` (n,): their mean is nabla f_i."""
        rows = torch.from_numpy(np.cumsum(self.counts) - self.counts + chosen).to(self.device)
        a, width = self._rows(self.features[rows]), self.features.shape[1]
        slope = self.loss.slope((a * x).sum(1), self.labels[rows])
        if self.scale == "sum":
            slope = slope * torch.from_numpy(self.counts).to(slope)
        gradient = slope[:, None] * a
        gradient[:, :width] += self.ridge * x[:, :width]
        return gradient

    def sample_smoothness(self) -> float:
        """L of the most curved f_il."""
        counts = torch.from_numpy(self.counts).to(self.device)
        times = counts.repeat_interleave(counts) if self.scale == "sum" else 1
        squares = (self.features**2).sum(1) + float(self.intercept)
        return self.loss.bound * float((squares * times).max()) + self.ridge

    @cached_property
    def _coercive(self) -> Tensor:
        if not self.loss.classes:
            return self._run(lambda block: block.regular)
        if not self.ridge:
            best = self.minimise()
            found = best.isfinite().all(1)
            return found & self._run(Block.enclosed, torch.where(found[:, None], best, 0))
        if not self.intercept:
            return torch.ones(self.n, dtype=torch.bool, device=self.device)
        ones = np.add.reduceat(self.labels.cpu().numpy(), np.cumsum(self.counts) - self.counts)
        return torch.from_numpy((ones > 0) & (ones < self.counts)).to(self.device)

    def coercive(self) -> Tensor:
        """True if f_i is known to grow to infinity in all directions.

        It does if rows span the space and the labels are numbers; if there are both classes (or no
        intercept) and a ridge; or if no plane separates the classes, not even weakly.
        """
        return self._coercive

    def quadratic(self) -> Quadratic:
        """The squared loss as 1/2 x'Ax - b'x + c; computed once."""
        return self._quadratic

    @cached_property
    def _quadratic(self) -> Quadratic:
        if self.loss.name != SQUARED_LOSS.name:
            raise ModelError(f"loss={self.loss.name}: not quadratic; use loss=squared.")
        a = self._run(Block.bound)
        b = self._run(lambda block: block.combine(block.y))
        return Quadratic(a, b, self.value(torch.zeros_like(b)))

    def prox(self, centre: Tensor, kappa: Tensor | float, start: Tensor | None = None) -> Tensor:
        """argmin f_i(x) + kappa_i/2 |x - centre_i|^2, from `start` (or centre or 0) on.

        Closed form for the squared loss. Else |gradient| is at most 1e-12 (float32: 1e-5) of the
        sizes of the terms it is a sum of.
        """
        if self.loss.name == SQUARED_LOSS.name:
            return self.quadratic().prox(centre, kappa)
        kappa = torch.as_tensor(kappa, dtype=self.dtype, device=self.device).expand(self.n)
        if start is None:
            start = self._run(Block.nearer, centre, kappa)
        return self._run(Block.prox, centre, kappa, start)

    def rooted(self, root: Tensor, centre: Tensor, start: Tensor) -> Tensor:
        """argmin f_i(w_i + L u) + |u|^2/2 as w_i + L u, for a root L (d, r), as exactly as `prox`.

        From `start`, a w_i + L u, on.
        """
        return self._run(partial(rooted, root), centre, start)

    def minimise(self, slope: Tensor | None = None, start: Tensor | None = None) -> Tensor:
        """argmin f_i(x) + <slope_i, x>, from `start` (default 0) on.

        A row of NaN where no minimiser exists, or none was found: the function falls for ever, or
        comes ever nearer to its infimum, as the logistic loss of one class does. If there are
        several, any of them.
        """
        if self.loss.name == SQUARED_LOSS.name:
            return self.quadratic().minimise(slope)
        zero = self.features.new_zeros(self.n, self.d)
        slope, start = zero if slope is None else slope, zero if start is None else start
        return self._run(Block.minimise, slope, start)

    def predict(self, x: Tensor) -> Tensor:
        """The scores <w, a> + b of all samples, in their order."""
        count = torch.from_numpy(self.counts).to(self.device)
        models = x.repeat_interleave(count, 0, output_size=len(self.features))
        return (self._rows(self.features) * models).sum(1)

    def pick(self, users: Sequence[int]) -> LinearLosses:
        """The losses of some users."""
        chosen = np.asarray(users, np.int64)
        rows = self._samples(chosen)
        return LinearLosses(
            self.features[rows], self.labels[rows], self.counts[chosen], loss=self.loss,
            scale=self.scale, ridge=self.ridge, intercept=self.intercept,
        )  # fmt: skip


def _check(losses: LinearLosses) -> None:
    """Data that fit together."""
    features, labels, counts = losses.features, losses.labels, losses.counts
    if features.dtype not in TOLERANCE:
        raise DataError(f"features are {features.dtype}: give float32 or float64.")
    if not len(counts) or counts.min() < 1:
        raise DataError("linear losses: there must be users, each with a sample or more.")
    if not counts.sum() == len(features) == len(labels):
        raise DataError(
            f"linear losses: {len(features)} features, {len(labels)} labels, sizes for "
            f"{counts.sum()}: give one of each for every sample."
        )
    if losses.loss.classes and not bool(((labels == 0) | (labels == 1)).all()):
        raise DataError(f"loss={losses.loss.name}: labels must be the classes 0 and 1.")
