"""Multinomial losses of linear models of all users: the mean or sum of -log softmax(W a + b)_y.

theta_i = [W, b], as `torch.nn.Linear(p, C)` is when flattened: a row for each class and none for
reference. What is added to all classes alike changes no probability; methods that begin at 0 keep
the sum over classes at 0.
"""

from __future__ import annotations

from functools import cached_property

import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn import functional as F

from corsage.core.arrays import Ints
from corsage.core.errors import DataError
from corsage.solvers.losses.ragged import Ragged, Scale
from corsage.solvers.losses.softmax_block import MOST_CURVED, SoftmaxBlock, by_class, flat, slopes


class SoftmaxLosses(Ragged[SoftmaxBlock]):
    """f_i(theta_i) = sum or mean over i's samples of the cross-entropy, + ridge/2 |theta|^2.

    The ridge is on intercepts, too: users have some of the classes only, and without it the
    intercepts of the others fall for ever.

    Parameters
    ----------
    features : (N, p), one user's samples after the other's; sets dtype and device.
    labels : (N,), classes from 0 on.
    sizes : (n,) how many samples each user has, at least one.
    classes : how many there are.
    scale : sum or mean over a user's samples.
    ridge : its weight.
    intercept : whether there are b.
    """

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        sizes: ArrayLike,
        *,
        classes: int,
        scale: Scale,
        ridge: float = 0.0,
        intercept: bool = True,
    ) -> None:
        super().__init__(
            features, labels.long(), sizes,
            scale=scale, ridge=ridge, intercept=intercept, outputs=classes,
        )  # fmt: skip
        self.classes = classes
        if len(labels) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < classes:
            raise DataError(f"cross-entropy: labels must be classes from 0 to {classes - 1}.")

    def _of(self, features: Tensor, labels: Tensor, sizes: Ints) -> SoftmaxLosses:
        """The same losses of other samples."""
        return SoftmaxLosses(
            features, labels, sizes, classes=self.classes, scale=self.scale, ridge=self.ridge,
            intercept=self.intercept,
        )  # fmt: skip

    def _block(self, users: Ints) -> SoftmaxBlock:
        """The block of these users."""
        sizes, rows = self.counts[users], self._samples(users)
        y = F.one_hot(self.labels[rows], self.classes).to(self.features)
        a, width = self._rows(self.features[rows]), self.features.shape[1]
        return SoftmaxBlock(a, y, sizes, self._shares(sizes), self.ridge, width)

    def descend(self, x: Tensor, k: int, step: float) -> Tensor:
        """x after k steps x_i <- x_i - step nabla f_i(x_i)."""
        return self._run(lambda block, own: block.descend(own, k, step), x)

    def convexity(self) -> Tensor:
        """mu_i: the ridge."""
        return self.features.new_full((self.n,), self.ridge)

    def sample_gradient(self, x: Tensor, chosen: Ints) -> Tensor:
        """nabla f_il(x_i) for one sample l of each user, `chosen` (n,): their mean is nabla f_i."""
        (a, labels), width = self._chosen(chosen), self.features.shape[1]
        scores = (a[:, None] * by_class(x, self.classes, width)).sum(2)
        slope = slopes(scores, F.one_hot(labels, self.classes).to(a)) * self._times()[:, None]
        return flat(slope[:, :, None] * a[:, None], width) + self.ridge * x

    def sample_smoothness(self) -> float:
        """L of the most curved f_il."""
        return MOST_CURVED * self._longest() + self.ridge

    @cached_property
    def _coercive(self) -> Tensor:
        if self.ridge:
            return torch.ones(self.n, dtype=torch.bool, device=self.device)
        return self.minimise().isfinite().all(1) & self._run(lambda block: block.spanning)

    def coercive(self) -> Tensor:
        """True if f_i is known to grow in all directions but that of a common shift of all scores.

        It does if there is a ridge; or if there is a minimiser, and rows span the space.
        """
        return self._coercive

    def prox(self, centre: Tensor, kappa: Tensor | float, start: Tensor | None = None) -> Tensor:
        """argmin f_i(x) + kappa_i/2 |x - centre_i|^2, from `start` (or centre or 0) on."""
        kappa = torch.as_tensor(kappa, dtype=self.dtype, device=self.device).expand(self.n)
        start = self._nearer(centre, kappa) if start is None else start
        return self._run(lambda block, *own: block.prox(*own), centre, kappa, start)

    def minimise(self, slope: Tensor | None = None, start: Tensor | None = None) -> Tensor:
        """argmin f_i(x) + <slope_i, x>, from `start` (default 0) on; of several the shortest.

        A row of NaN where no minimiser exists, or none was found.
        """
        return self._minimised(slope, start)

    def predict(self, x: Tensor) -> Tensor:
        """The scores W a + b of all samples (N, C), in their order."""
        models, rows = by_class(x, self.classes, self.features.shape[1]), self._rows(self.features)
        users = torch.split(rows, self.counts.tolist())
        return torch.cat([own @ model.T for own, model in zip(users, models, strict=True)])
