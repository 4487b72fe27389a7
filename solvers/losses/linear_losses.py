"""Losses of linear models of all users: f_i(theta) = sum or mean of phi(<w, a> + b, y) + ridge.

theta_i = [w, b], as `torch.nn.Linear(p, 1)` is when flattened.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from corsage.core.arrays import Ints
from corsage.core.errors import DataError, ModelError
from corsage.core.losses import SQUARED_LOSS, ScalarLoss, sign
from corsage.solvers.losses import users_newton
from corsage.solvers.losses.linear_block import Block
from corsage.solvers.losses.local_descent import Lanes, fits, in_lanes
from corsage.solvers.losses.quadratic import Quadratic
from corsage.solvers.losses.ragged import Ragged, Scale
from corsage.solvers.losses.users_newton import Functions, State, by_matrix, lengths

if TYPE_CHECKING:
    from corsage.solvers.losses.linear_block import Block


class LinearLosses(Ragged[Block]):
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
        super().__init__(features, labels, sizes, scale=scale, ridge=ridge, intercept=intercept)
        self.loss = loss
        if loss.classes and not bool(((labels == 0) | (labels == 1)).all()):
            raise DataError(f"loss={loss.name}: labels must be the classes 0 and 1.")

    def _block(self, users: Ints) -> Block:
        """The block of these users."""
        sizes = self.counts[users]
        rows = self._samples(users)
        a = self._rows(self.features[rows])
        share = self._shares(sizes)
        return Block(a, self.labels[rows], sizes, self.loss, share, self._ridges())

    def _of(self, features: Tensor, labels: Tensor, sizes: Ints) -> LinearLosses:
        """The same losses of other samples."""
        return LinearLosses(
            features, labels, sizes, loss=self.loss, scale=self.scale, ridge=self.ridge,
            intercept=self.intercept,
        )  # fmt: skip

    def _ridges(self) -> Tensor:
        """The ridge of each parameter."""
        ridge = self.features.new_full((self.d,), self.ridge)
        if self.intercept:
            ridge[-1] = 0
        return ridge

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

    def convexity(self) -> Tensor:
        """mu_i: of the squared loss the smallest eigenvalue, else the ridge of all coordinates."""
        if self.loss.name == SQUARED_LOSS.name:
            return self.quadratic().convexity()
        return self.features.new_full((self.n,), 0.0 if self.intercept else self.ridge)

    def sample_gradient(self, x: Tensor, chosen: Ints) -> Tensor:
        """nabla f_il(x_i) for one sample l of each user, `chosen` (n,): their mean is nabla f_i."""
        (a, labels), width = self._chosen(chosen), self.features.shape[1]
        slope = self.loss.slope((a * x).sum(1), labels) * self._times()
        gradient = slope[:, None] * a
        gradient[:, :width] += self.ridge * x[:, :width]
        return gradient

    def sample_smoothness(self) -> float:
        """L of the most curved f_il."""
        return self.loss.bound * self._longest() + self.ridge

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
            start = self._nearer(centre, kappa)
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
        return self._minimised(slope, start)

    def predict(self, x: Tensor) -> Tensor:
        """The scores <w, a> + b of all samples, in their order."""
        count = torch.from_numpy(self.counts).to(self.device)
        models = x.repeat_interleave(count, 0, output_size=len(self.features))
        return (self._rows(self.features) * models).sum(1)


def rooted(root: Tensor, block: Block, centre: Tensor, start: Tensor) -> Tensor:
    """argmin f_i(w_i + L u) + |u|^2/2 for every user, as w_i + L u; L is (d, r).

    It is the root of a covariance D = LL', which may be singular: what does not vary is the
    centre's. Sought over z = u/unit, in which no coordinate curves by more than 1 on the diagonal.
    """
    far = root.abs() / block.unit()[:, :, None]
    unit = (1 + far.square().sum(1)).rsqrt()

    def model(z: Tensor) -> Tensor:
        return centre + (unit * z) @ root.T

    def gradient(z: Tensor) -> Tensor:
        return unit * (block.gradient(model(z)) @ root + unit * z)

    def hessian(z: Tensor) -> Tensor:
        h = root.T @ block.hessian(model(z)) @ root
        h.diagonal(dim1=1, dim2=2).add_(1)
        return h * unit[:, :, None] * unit[:, None]

    d = root.shape[0]
    wide = lengths((far * unit[:, None]).flatten(1))  # |L'| from units of theta to those of u
    force = wide * (block.force + d * lengths(centre / block.unit()))
    functions = Functions(gradient, by_matrix(hessian), 1 + d * wide.square(), force, coercive=True)
    z, _ = users_newton.minimise(functions, begun(block, root, centre, start) / unit)
    return model(ended(functions, z))


def begun(block: Block, root: Tensor, centre: Tensor, start: Tensor) -> Tensor:
    """u where the search begins: the start's, or 0 where the function is less there.

    Where the root has become small the start's u is huge, and its rounding with it.
    """
    u = (start - centre) @ torch.linalg.pinv(root).T
    there = block.value(centre + u @ root.T) + u.square().sum(1) / 2
    return torch.where((there < block.value(centre))[:, None], u, 0)


def ended(functions: Functions, z: Tensor) -> Tensor:
    """Newton's steps as long as they halve somebody's gradient: what is left is rounding.

    A float32 user who ends where its tolerance lets it would be off in the third digit.
    """
    now = functions.start(z)
    for _ in range(users_newton.MOST_NEWTON_STEPS):
        after = functions.start(now.x + users_newton.direction(functions, now, 0.0))
        less = after.norm < now.norm / 2
        if not less.any():
            break
        some = less[:, None]
        x, g = torch.where(some, after.x, now.x), torch.where(some, after.g, now.g)
        now = State(x, g, lengths(g), lengths(g))
    return now.x
