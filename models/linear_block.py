"""Losses of linear models of users with about as many samples each, all at once.

Losses of two classes are functions of the margin alone: a row is stored as -l a with l = -1 or +1,
its class is 0 then. So the slope of a score far on the right side is a small number, not the
difference of two that are nearly 1.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from corsage.models import newton
from corsage.models.losses import ScalarLoss, sign
from corsage.models.newton import Functions, thin
from corsage.models.padded import Ints, pad, padded

EXACT = 500  # columns up to which the largest eigenvalue is computed; beyond, the trace bounds it
SETTLED = 0.1  # change of a score in a Newton step below which a logistic loss has a minimiser


class Block:
    """f_i(x) = share_i sum_j phi(<a_j, x>, y_j) + 1/2 sum_k ridge_k x_k^2.

    Parameters
    ----------
    rows, labels : a_j and y_j of all these users, one user after the other.
    sizes : samples a user.
    loss : phi; if of classes, phi(u, 1) = phi(-u, 0).
    share : (users,)
    ridge : (d,)
    """

    def __init__(
        self,
        rows: Tensor,
        labels: Tensor,
        sizes: Ints,
        loss: ScalarLoss,
        share: Tensor,
        ridge: Tensor,
    ) -> None:
        self.loss = loss
        self.share = None if bool((share == 1).all()) else share
        self.ridge = ridge if bool(ridge.any()) else None
        if loss.classes:
            rows = -sign(labels, rows)[:, None] * rows
        self.rows = padded(pad(rows, sizes))
        self.real = self._laid(rows.new_ones(len(rows)), sizes)
        self.y = rows.new_zeros(()) if loss.classes else self._laid(labels.to(rows.dtype), sizes)

    def _laid(self, values: Tensor, sizes: Ints) -> Tensor:
        """A number a sample, in the layout of the rows."""
        values = pad(values, sizes)
        return values if self.rows.axis == 1 else values.T.contiguous()

    def _total(self, values: Tensor) -> Tensor:
        """share_i times the sum over a user's samples."""
        sums = values.sum(self.rows.axis)
        return sums if self.share is None else sums * self.share

    def combine(self, weights: Tensor) -> Tensor:
        """share_i sum_j weight_j a_j."""
        sums = self.rows.combine(weights)
        return sums if self.share is None else sums * self.share[:, None]

    def gram(self, weights: Tensor) -> Tensor:
        """share_i sum_j weight_j a_j a_j' + diag(ridge)."""
        h = self.rows.gram(weights)
        if self.share is not None:
            h *= self.share[:, None, None]
        if self.ridge is not None:
            h.diagonal(dim1=1, dim2=2).add_(self.ridge)
        return h

    def value(self, x: Tensor) -> Tensor:
        """f_i(x_i)."""
        value = self._total(self.loss.value(self.rows.scores(x), self.y) * self.real)
        return value if self.ridge is None else value + (self.ridge * x * x).sum(1) / 2

    def gradient(self, x: Tensor) -> Tensor:
        """nabla f_i(x_i)."""
        g = self.combine(self.loss.slope(self.rows.scores(x), self.y))
        return g if self.ridge is None else g + self.ridge * x

    def hessian(self, x: Tensor) -> Tensor:
        """An element of the generalised Hessian."""
        return self.gram(self.loss.curvature(self.rows.scores(x), self.y))

    def bound(self) -> Tensor:
        """The Hessian with the largest phi'' everywhere: what none exceeds."""
        return self.gram(self.loss.bound * self.real)

    @cached_property
    def smoothness(self) -> Tensor:
        """L_i."""
        bound = self.bound()
        if bound.shape[1] > EXACT:
            return bound.diagonal(dim1=1, dim2=2).sum(1)
        top: Tensor = torch.linalg.eigvalsh(bound)[:, -1]
        return top

    @cached_property
    def regular(self) -> Tensor:
        """Whether no direction is flat: f_i is coercive if phi is."""
        return self._spectrum(self._unit(None))[0][:, 0] > thin(self.share.dtype)

    def fenced(self, x: Tensor) -> Tensor:
        """Whether a loss of classes is known to be coercive from its minimiser x_i.

        The rows pull to all sides there: weights |phi'| > 0 of -l a sum up to 0, and the rows that
        have one span the space. So in each direction some row comes to the wrong side.
        """

    def _spectrum(self, unit: Tensor) -> tuple[Tensor, Tensor]:
        """Eigenvalues and eigenvectors of the bound in units of the coordinates, 1 on average."""
        return torch.linalg.eigh(_in_units(self.bound(), unit))
