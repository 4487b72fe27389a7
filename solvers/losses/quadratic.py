"""Convex losses of n users with closed forms: quadratic ones, and distances to points."""

from __future__ import annotations

from collections.abc import Sequence
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

    def pick(self, users: Sequence[int]) -> Quadratic:
        """The losses of some users."""
        rows = torch.as_tensor(users, dtype=torch.long, device=self.device)
        return Quadratic(self.a[rows], self.b[rows], self.c[rows])


class Points:
    """Huber's function of |x - a_i|: 1/2 |x - a_i|^2 up to delta, linear beyond.

    Parameters
    ----------
    a : (n, d).
    delta : infinity: 1/2 |x - a_i|^2 everywhere.
    """

    def __init__(self, a: Tensor, delta: float = torch.inf) -> None:
        if not delta > 0:
            raise ModelError(f"losses of points: delta={delta:g} must be above 0.")
        self.a, self.delta = a, delta
        self.n, self.d = a.shape
        self.dtype, self.device = a.dtype, a.device

    def _share(self, r: Tensor) -> Tensor:
        """min(1, delta/r), without a division by 0."""
        return self.delta / r.clamp(min=self.delta) if self.delta < torch.inf else r.new_ones(())

    def value(self, x: Tensor) -> Tensor:
        """Of r = |x - a_i|: r^2/2, or delta r - delta^2/2."""
        r: Tensor = (x - self.a).norm(dim=1)
        near = r.clamp(max=self.delta)
        return near * (r - near / 2)

    def gradient(self, x: Tensor) -> Tensor:
        """(x - a_i) min(1, delta/r)."""
        v = x - self.a
        return v * self._share(v.norm(dim=1, keepdim=True))

    def hessian(self, x: Tensor) -> Tensor:
        """I, or delta/r (I - vv'/r^2) beyond delta."""
        v = x - self.a
        r = v.norm(dim=1, keepdim=True)
        v = torch.where(r > self.delta, v / r, 0)
        eye = torch.eye(self.d, dtype=self.dtype, device=self.device)
        return self._share(r)[..., None] * (eye - v[:, :, None] * v[:, None])

    def smoothness(self) -> Tensor:
        """1."""
        return self.a.new_ones(self.n)

    def convexity(self) -> Tensor:
        """1, or 0 if there is a linear part."""
        return self.a.new_full((self.n,), float(self.delta == torch.inf))

    def coercive(self) -> Tensor:
        """Always."""
        return torch.ones(self.n, dtype=torch.bool, device=self.device)

    def prox(self, centre: Tensor, kappa: Tensor | float, start: Tensor | None = None) -> Tensor:
        """a_i + v max(kappa/(1 + kappa), 1 - delta/(kappa |v|)), v = centre - a_i; no start."""
        v, kappa = centre - self.a, torch.as_tensor(column(kappa), dtype=self.dtype)
        far = 1 - self.delta / (kappa * v.norm(dim=1, keepdim=True))
        return self.a + v * torch.maximum(kappa / (1 + kappa), far)

    def minimise(self, slope: Tensor | None = None, start: Tensor | None = None) -> Tensor:
        """a_i - slope_i; NaN where the slope is steeper than delta. No start."""
        if slope is None:
            return self.a.clone()
        steep: Tensor = slope.norm(dim=1, keepdim=True) > self.delta
        return torch.where(steep, torch.nan, self.a - slope)

    def pick(self, users: Sequence[int]) -> Points:
        """The losses of some users."""
        rows = torch.as_tensor(users, dtype=torch.long, device=self.device)
        return Points(self.a[rows], self.delta)
