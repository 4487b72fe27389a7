"""The losses of clusters: F_k(w) = sum of f_i(w) over the users i of cluster k (n_k g_k of (5))."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from corsage.core.arrays import Ints
from corsage.solvers.losses import users_newton
from corsage.solvers.losses.convex import Minimised
from corsage.solvers.losses.users_newton import Functions, by_matrix


class Merged:
    """Clusters as if each were one user, for any kind of losses.

    Parameters
    ----------
    losses : f_i of the users.
    labels : the cluster 0, ..., K-1 of each user; every cluster has one at least.
    """

    def __init__(self, losses: Minimised, labels: Ints) -> None:
        self.losses, self.labels = losses, labels
        self.n, self.d = int(labels.max()) + 1, losses.d
        self.dtype, self.device = losses.dtype, losses.device
        self._place = torch.from_numpy(np.ascontiguousarray(labels)).to(self.device)

    def _sum(self, own: Tensor) -> Tensor:
        """Over the users of each cluster."""
        return own.new_zeros(self.n, *own.shape[1:]).index_add(0, self._place, own)

    def value(self, x: Tensor) -> Tensor:
        """F_k(x_k)."""
        return self._sum(self.losses.value(x[self._place]))

    def gradient(self, x: Tensor) -> Tensor:
        """nabla F_k(x_k)."""
        return self._sum(self.losses.gradient(x[self._place]))

    def hessian(self, x: Tensor) -> Tensor:
        """The Hessians' sums."""
        return self._sum(self.losses.hessian(x[self._place]))

    def smoothness(self) -> Tensor:
        """The sums of L_i."""
        return self._sum(self.losses.smoothness())

    def minimise(self, slope: Tensor | None = None, start: Tensor | None = None) -> Tensor:
        """argmin F_k(x) + <slope_k, x>; a row of NaN where none was found."""
        zero = torch.zeros(self.n, self.d, dtype=self.dtype, device=self.device)
        slope = zero if slope is None else slope
        functions = Functions(
            lambda x: self.gradient(x) + slope,
            by_matrix(self.hessian),
            self.smoothness(),
            self._force() + slope.norm(dim=1),
            coercive=False,
        )
        x, found = users_newton.minimise(functions, zero if start is None else start)
        return torch.where(found[:, None], x, torch.nan)

    def _force(self) -> Tensor:
        """The sums of |nabla f_i(0)|: what rounding errors of the gradient compare with."""
        zero = torch.zeros(self.losses.n, self.d, dtype=self.dtype, device=self.device)
        return self._sum(self.losses.gradient(zero).norm(dim=1))
