"""Losses of linear models of users with about as many samples each, all at once.

Losses of two classes are functions of the margin alone: a row is stored as -l a with l = -1 or +1,
its class is 0 then. So the slope of a score far on the right side is a small number, not the
difference of two that are nearly 1.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from corsage.core.arrays import Ints
from corsage.core.losses import ScalarLoss, sign
from corsage.solvers.losses import users_newton
from corsage.solvers.losses.padded import pad, padded
from corsage.solvers.losses.users_newton import Functions, by_matrix, lengths, thin

EXACT_COLUMNS = (
    500  # columns up to which the largest eigenvalue is computed; beyond, the trace bounds it
)
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

    def descend(self, x: Tensor, k: int, step: float) -> Tensor:
        """x after k gradient steps, one after the other while the rows are in the cache."""
        for _ in range(k):
            x = x.sub(self.gradient(x), alpha=step)
        return x

    def hessian(self, x: Tensor) -> Tensor:
        """An element of the generalised Hessian."""
        return self.gram(self.loss.curvature(self.rows.scores(x), self.y))

    def trace(self, x: Tensor) -> Tensor:
        """Its trace."""
        return self.hessian(x).diagonal(dim1=1, dim2=2).sum(1)

    def above(self, x: Tensor) -> Tensor:
        """The Hessian of a quadratic through f_i(x_i), with its gradient, that f_i is below."""
        return self.gram(self.loss.above(self.rows.scores(x), self.y) * self.real)

    def bound(self) -> Tensor:
        """The Hessian with the largest phi'' everywhere: what none exceeds."""
        return self.gram(self.loss.bound * self.real)

    @cached_property
    def smoothness(self) -> Tensor:
        """L_i."""
        bound = self.bound()
        if bound.shape[1] > EXACT_COLUMNS:
            return bound.diagonal(dim1=1, dim2=2).sum(1)
        top: Tensor = torch.linalg.eigvalsh(bound)[:, -1]
        return top

    def unit(self, weight: Tensor | float = 0.0) -> Tensor:
        """A length for each coordinate, in which it curves by 1 at most: features need no scaling.

        A coordinate without any curvature keeps its own.
        """
        curvature = self._diagonal + weight
        return torch.where(curvature > 0, curvature, 1).rsqrt()

    @cached_property
    def _diagonal(self) -> Tensor:
        return self.bound().diagonal(dim1=1, dim2=2).clone()

    @cached_property
    def force(self) -> Tensor:
        """share_i sum_j |phi'(0, y_j)| |a_j|, in units."""
        slopes = self.loss.slope(torch.zeros_like(self.real), self.y).abs()
        return self._total(slopes * self.rows.lengths(self.unit()))

    @cached_property
    def regular(self) -> Tensor:
        """True if there is no direction in which f_i is constant: it is coercive if phi is."""
        least: Tensor = torch.linalg.eigvalsh(_in_units(self.bound(), self.unit()))[:, 0]
        return least > thin(least.dtype)

    @cached_property
    def _flat(self) -> Tensor | None:
        """The projection on the directions in which f_i is constant, in units; None: nobody's."""
        if bool(self.regular.all()):
            return None
        values, vectors = torch.linalg.eigh(_in_units(self.bound(), self.unit()))
        projection: Tensor = (vectors * (values <= thin(values.dtype))[:, None]) @ vectors.mT
        return projection

    def enclosed(self, best: Tensor) -> Tensor:
        """True if a loss of classes without ridge is known to be coercive, from its minimiser.

        With weights w = phi' >= 0 the rows -l a sum up to g, nearly 0. Had a direction d, |d| = 1,
        all of them on one side, sum_j w_j <a_j, d>^2 would be at most |g| max |a_j|.
        """
        unit, weights = self.unit(), self.loss.slope(self.rows.scores(best), self.y)
        least: Tensor = torch.linalg.eigvalsh(_in_units(self.gram(weights), unit))[:, 0]
        g, longest = unit * self.combine(weights), self.rows.lengths(unit).amax(self.rows.axis)
        return least > 2 * lengths(g) * longest + 32 * torch.finfo(g.dtype).eps

    def prox(self, centre: Tensor, kappa: Tensor, start: Tensor) -> Tensor:
        """argmin f_i(x) + kappa_i/2 |x - centre_i|^2."""
        weight = kappa[:, None]
        unit = self.unit(weight)

        def gradient(z: Tensor) -> Tensor:
            x = unit * z
            return unit * torch.addcmul(self.gradient(x), weight, x - centre)

        def hessian(z: Tensor) -> Tensor:
            h = self.hessian(unit * z)
            h.diagonal(dim1=1, dim2=2).add_(weight)
            return _in_units(h, unit)

        force = self.force + lengths(unit * weight * centre)
        functions = Functions(gradient, by_matrix(hessian), _trace(unit), force, coercive=True)
        return unit * users_newton.minimise(functions, start / unit)[0]

    def minimise(self, slope: Tensor, start: Tensor) -> Tensor:
        """argmin f_i(x) + <slope_i, x>; NaN if none is found."""
        unit, flat = self.unit(), self._flat
        slope = unit * slope
        force = self.force + lengths(slope)

        def steep(v: Tensor) -> Tensor:
            return v if flat is None else v - torch.bmm(flat, v[:, :, None])[:, :, 0]

        def gradient(z: Tensor) -> Tensor:
            return steep(unit * self.gradient(unit * z) + slope)

        def hessian(z: Tensor) -> Tensor:
            h = _in_units(self.hessian(unit * z), unit)
            return h if flat is None else h + flat

        functions = Functions(gradient, by_matrix(hessian), _trace(unit), force, coercive=False)
        z, found = users_newton.minimise(functions, steep(start / unit))
        found &= lengths(slope - steep(slope)) <= thin(z.dtype) * force
        found &= self._settled(users_newton.direction(functions, functions.start(z), 0.0) * unit)
        return torch.where(found[:, None], unit * z, torch.nan)

    def _settled(self, step: Tensor) -> Tensor:
        """True if a vanishing gradient is that of a minimiser, not of a way to infinity.

        Where phi is piecewise quadratic it is. The logistic loss only comes near to its infimum:
        where it falls like exp(-u), each Newton step changes some score by 1 or more.
        """
        places = torch.tensor([-20.0, 0.0, 20.0], dtype=step.dtype, device=step.device)
        if not bool((self.loss.curvature(places, torch.zeros_like(places)) > 0).all()):
            return torch.ones_like(step[:, 0], dtype=torch.bool)
        return self.rows.scores(step).abs().amax(self.rows.axis) <= SETTLED


def _in_units(h: Tensor, unit: Tensor) -> Tensor:
    """diag(unit) H diag(unit), in the place of H."""
    return h.mul_(unit[:, :, None]).mul_(unit[:, None])


def _trace(unit: Tensor) -> Tensor:
    """The bound on the whole curvature where all are at most 1: d."""
    return unit.new_full((len(unit),), float(unit.shape[1]))
