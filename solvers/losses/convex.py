"""Convex losses f_i of n users at once, for methods with gradients, Hessians or prox steps.

Arrays have one row a user; dtype and device are those of the losses' data. Linear models on ragged
data, any quadratic, and any torch function, one user at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from corsage.core.errors import ModelError
from corsage.solvers.losses.users_newton import TOLERANCE

LBFGS_STEPS = 200


class Minimised(Protocol):
    """f_1, ..., f_n, convex with Lipschitz gradients, and their minimisers.

    Parameters
    ----------
    n, d : users, numbers in a model.
    dtype, device : of all tensors that go in and come out.
    """

    n: int
    d: int
    dtype: torch.dtype
    device: torch.device

    def value(self, x: Tensor) -> Tensor:
        """f_i(x_i), (n,)."""

    def gradient(self, x: Tensor) -> Tensor:
        """nabla f_i(x_i), (n, d)."""

    def hessian(self, x: Tensor) -> Tensor:
        """The Hessians (n, d, d), of the generalised ones where f_i has no other."""

    def smoothness(self) -> Tensor:
        """L_i, an upper bound of the curvature, (n,)."""

    def minimise(self, slope: Tensor | None = None, start: Tensor | None = None) -> Tensor:
        """argmin f_i(x) + <slope_i, x>; a row of NaN where none exists, or none was found."""


class Losses(Minimised, Protocol):
    """The same, with what a federation asks besides."""

    def convexity(self) -> Tensor:
        """mu_i >= 0, a lower bound of the curvature, (n,)."""

    def coercive(self) -> Tensor:
        """True if f_i is known to grow to infinity in all directions, (n,) of bool."""

    def prox(self, centre: Tensor, kappa: Tensor | float, start: Tensor | None = None) -> Tensor:
        """argmin f_i(x) + kappa_i/2 |x - centre_i|^2 (kappa > 0), from `start` on."""


class SmoothLosses:
    """Any smooth convex losses, by autograd, one user after the other.

    Parameters
    ----------
    function : f_i(x) as a number, for a user's number i and x (d,), in torch operations.
    n, d : users, numbers in a model.
    dtype, device : of the models.
    """

    def __init__(
        self,
        function: Callable[[int, Tensor], Tensor],
        n: int,
        d: int,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        self.function, self.n, self.d = function, n, d
        self.dtype, self.device = dtype, torch.device(device)

    def value(self, x: Tensor) -> Tensor:
        """f_i(x_i)."""
        return torch.stack([self.function(i, x[i]) for i in range(self.n)])

    def gradient(self, x: Tensor) -> Tensor:
        """nabla f_i(x_i)."""
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(self.value(x).sum(), x)[0]

    def hessian(self, x: Tensor) -> Tensor:
        """nabla^2 f_i(x_i)."""
        hessian = torch.autograd.functional.hessian
        rows = [hessian(partial(self.function, i), x[i]) for i in range(self.n)]  # type: ignore[no-untyped-call]
        return torch.stack(rows)

    def trace(self, x: Tensor) -> Tensor:
        """Their traces."""
        return self.hessian(x).diagonal(dim1=1, dim2=2).sum(1)

    def smoothness(self) -> Tensor:
        """Nobody knows."""
        raise ModelError("losses by autograd: L is not known; give the step sizes explicitly.")

    def convexity(self) -> Tensor:
        """0: nothing better is known."""
        return torch.zeros(self.n, dtype=self.dtype, device=self.device)

    def coercive(self) -> Tensor:
        """Not known of anyone."""
        return torch.zeros(self.n, dtype=torch.bool, device=self.device)

    def prox(self, centre: Tensor, kappa: Tensor | float, start: Tensor | None = None) -> Tensor:
        """argmin f_i(x) + kappa_i/2 |x - centre_i|^2, by L-BFGS."""
        weight = torch.as_tensor(kappa, dtype=self.dtype, device=self.device).expand(self.n)

        def term(i: int, x: Tensor) -> Tensor:
            return weight[i] / 2 * (x - centre[i]).square().sum()

        return self._solve(term, centre if start is None else start)

    def minimise(self, slope: Tensor | None = None, start: Tensor | None = None) -> Tensor:
        """argmin f_i(x) + <slope_i, x>, by L-BFGS, from `start` (default 0) on.

        NaN if the gradient is not small at the end: more than 1e-6 (float32: 3e-3) of 1 + its size
        at the start.
        """
        zero = torch.zeros(self.n, self.d, dtype=self.dtype, device=self.device)
        slope, start = zero if slope is None else slope, zero if start is None else start
        x = self._solve(lambda i, v: (slope[i] * v).sum(), start)
        left, first = ((self.gradient(v) + slope).norm(dim=1) for v in (x, start))
        found = left <= TOLERANCE[self.dtype] ** 0.5 * (1 + first)
        return torch.where(found[:, None], x, torch.nan)

    def _solve(self, term: Callable[[int, Tensor], Tensor], start: Tensor) -> Tensor:
        """argmin f_i + term_i for one user after the other."""
        x = start.detach().clone()
        for i in range(self.n):
            x[i] = _lbfgs(lambda v, i=i: self.function(i, v) + term(i, v), x[i])  # type: ignore[misc]
        return x


def _lbfgs(function: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """The minimiser, as exactly as function values tell."""
    x = start.clone().requires_grad_()
    first = torch.autograd.grad(function(x), x)[0]
    solver = torch.optim.LBFGS(
        [x], lr=1.0,  # as an int, steps along an endless slope outgrow 64 bits
        max_iter=LBFGS_STEPS, history_size=20, line_search_fn="strong_wolfe",
        tolerance_grad=TOLERANCE[x.dtype] * float(first.abs().max()), tolerance_change=0,
    )  # fmt: skip

    def closure() -> Tensor:
        value = function(x)
        x.grad = torch.autograd.grad(value, x)[0]
        return value

    solver.step(closure)  # type: ignore[no-untyped-call]
    return x.detach()
