"""Quadratic losses of n users, with closed forms."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from corsage.core.errors import ModelError
from corsage.solvers.losses.users_newton import lengths, thin


def column(values: Tensor | float) -> Tensor | float:
    """One number for all users as it is, one a user as a column."""
    return values[:, None] if isinstance(values, Tensor) and values.ndim else values


class Quadratic:
    """f_i(x) = 1/2 x'A_i x - b_i'x + c_i.

    Parameters
    ----------
    a : (n, d, d), symmetric, no eigenvalue below 0.
    b : (n, d).
    c : (n,).
    """

    def __init__(self, a: Tensor, b: Tensor, c: Tensor) -> None:
        self.a, self.b, self.c = a, b, c
        self.n, self.d = b.shape
        self.dtype, self.device = b.dtype, b.device
        if a.shape != (self.n, self.d, self.d) or c.shape != (self.n,):
            raise ModelError(
                f"quadratic losses: A {tuple(a.shape)}, b {tuple(b.shape)}, c {tuple(c.shape)} "
                "do not fit: give (n, d, d), (n, d), (n,)."
            )

        self._factor: tuple[Tensor, Tensor] | None = None

    @cached_property
    def _unit(self) -> Tensor:
        """A length for each coordinate in which it curves by 1: so scales do not matter."""
        curvature = self.a.diagonal(dim1=1, dim2=2)
        return torch.where(curvature > 0, curvature, 1).rsqrt()

    @cached_property
    def _spectrum(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues (n, d) and eigenvectors of A_i in these units; what is nearly 0 is 0."""
        values, vectors = torch.linalg.eigh(self._unit[:, :, None] * self.a * self._unit[:, None])
        if bool((values < -thin(self.dtype)).any()):
            raise ModelError("quadratic losses: an A_i has a negative eigenvalue: not convex.")
        return torch.where(values > thin(self.dtype), values, 0), vectors

    @cached_property
    def _flat(self) -> Tensor | None:
        """The projection on the null space of A_i; None if all are regular."""
        values, vectors = self._spectrum
        if bool((values > 0).all()):
            return None
        kernel = self._unit[:, :, None] * vectors * (values == 0)[:, None]
        projection: Tensor = kernel @ torch.linalg.pinv(kernel)
        return projection

    @cached_property
    def _ends(self) -> tuple[Tensor, Tensor]:
        """The smallest (but for rounding) and the largest eigenvalue."""
        values = torch.linalg.eigvalsh(self.a)
        least, most = values[:, 0], values[:, -1]
        noise = 8 * self.d * torch.finfo(self.dtype).eps * most
        return torch.where((least > noise) & self.coercive(), least, 0), most

    def _times(self, x: Tensor) -> Tensor:
        return torch.bmm(self.a, x[:, :, None])[:, :, 0]

    def value(self, x: Tensor) -> Tensor:
        """f_i(x_i)."""
        return (x * (self._times(x) / 2 - self.b)).sum(1) + self.c

    def gradient(self, x: Tensor) -> Tensor:
        """A_i x_i - b_i."""
        return self._times(x) - self.b

    def hessian(self, x: Tensor) -> Tensor:
        """A_i."""
        return self.a.clone()

    def smoothness(self) -> Tensor:
        """The largest eigenvalue."""
        return self._ends[1]

    def convexity(self) -> Tensor:
        """The smallest eigenvalue."""
        return self._ends[0]

    def coercive(self) -> Tensor:
        """True if A_i is regular."""
        return self._spectrum[0][:, 0] > 0

    def prox(self, centre: Tensor, kappa: Tensor | float, start: Tensor | None = None) -> Tensor:
        """(A_i + kappa_i I)^-1 (b_i + kappa_i centre_i); needs no start."""
        weight = torch.as_tensor(kappa, dtype=self.dtype, device=self.device)
        right = self.b + column(weight) * centre
        return torch.cholesky_solve(right[:, :, None], self._cholesky(weight))[:, :, 0]

    def _cholesky(self, weight: Tensor) -> Tensor:
        """The factor of A_i + kappa_i I: that of the last call, if kappa is still the same."""
        if self._factor is None or not torch.equal(self._factor[0], weight):
            system = self.a.clone()
            diagonal = system.diagonal(dim1=1, dim2=2)
            # against rounding where A_i is singular and kappa is next to nothing
            diagonal *= 1 + 2 * self.d * torch.finfo(self.dtype).eps
            diagonal += column(weight)
            factor, failed = torch.linalg.cholesky_ex(system)
            if bool(failed.any()):
                raise ModelError("quadratic losses: an A_i + kappa_i I is not positive definite.")
            self._factor = weight.clone(), factor
        return self._factor[1]

    def minimise(self, slope: Tensor | None = None, start: Tensor | None = None) -> Tensor:
        """The shortest minimiser of f_i(x) + <slope_i, x>; NaN if it falls for ever. No start."""
        values, vectors = self._spectrum
        slope = torch.zeros_like(self.b) if slope is None else slope
        size = lengths(self._unit * self.b) + lengths(self._unit * slope)
        inner = torch.bmm((self._unit * (self.b - slope))[:, None], vectors)[:, 0]
        falls = lengths(torch.where(values == 0, inner, 0)) > thin(self.dtype) * size
        inner = torch.where(values == 0, 0, inner / torch.where(values == 0, 1, values))
        x = self._unit * torch.bmm(vectors, inner[:, :, None])[:, :, 0]
        if self._flat is not None:
            x = x - torch.bmm(self._flat, x[:, :, None])[:, :, 0]
        return torch.where(falls[:, None], torch.nan, x)
