"""The users' costs f_i as the exact solver needs them: arrays in and out, all users at once.

`Minimised` of `corsage.solvers.losses.convex` are torch tensors; `LossCosts` is the border to them.
Points under the quadratic loss have closed forms and stay arrays. `Fused` adds up the costs of
users that share a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from corsage.core.arrays import Floats, Ints
from corsage.core.errors import ModelError
from corsage.solvers.convex_clustering.exact.edges import norms

if TYPE_CHECKING:
    from corsage.solvers.losses.convex import Minimised


class Smooth(Protocol):
    """f_i of n users with d parameters each, and derivatives."""

    @property
    def n(self) -> int:
        """The number of users."""

    @property
    def d(self) -> int:
        """The number of a user's parameters."""

    def value(self, x: Floats) -> Floats:
        """f_i(x_i), (n,)."""

    def gradient(self, x: Floats) -> Floats:
        """(n, d)."""

    def hessian(self, x: Floats) -> Floats:
        """(n, d, d), a generalised one where f_i has none."""


class Costs(Smooth, Protocol):
    """Costs that can be minimised too."""

    def slack(self, x: Floats, v: Floats) -> Floats:
        """f_i(x_i) + <v_i, x_i> - min over x of the same, (n,); infinite where there is none."""

    def minimise(self) -> Floats:
        """argmin f_i, (n, d); NaN where there is none."""

    def smoothness(self) -> float:
        """The mean of the f_i's largest curvatures."""

    def strongest(self, radius: Floats) -> Floats:
        """The radii, or less where so much pull fuses two users for sure, (E,)."""


@dataclass(frozen=True)
class PointCosts:
    """f_i(x) = m_i/2 |x - a_i|^2: convex clustering of the points a (n, d).

    m (n,) are 1 unless they are given: a cluster of points counts as many as it has.
    """

    a: Floats
    m: Floats | None = None

    @property
    def n(self) -> int:
        """The number of points."""
        return len(self.a)

    @property
    def d(self) -> int:
        """Their dimension."""
        return int(self.a.shape[1])

    @cached_property
    def _m(self) -> Floats:
        return np.ones(self.n) if self.m is None else self.m

    def value(self, x: Floats) -> Floats:
        """m_i/2 |x_i - a_i|^2."""
        return np.asarray(self._m * np.square(x - self.a).sum(1) / 2)

    def gradient(self, x: Floats) -> Floats:
        """m_i (x_i - a_i)."""
        return np.asarray(self._m[:, None] * (x - self.a))

    def hessian(self, x: Floats) -> Floats:
        """m_i times the identity."""
        return np.asarray(self._m[:, None, None] * np.eye(self.d))

    def slack(self, x: Floats, v: Floats) -> Floats:
        """1/(2 m_i) |m_i (x_i - a_i) + v_i|^2, without cancellation."""
        return np.asarray(np.square(self.gradient(x) + v).sum(1) / (2 * self._m))

    def minimise(self) -> Floats:
        """The points."""
        return self.a.copy()

    def smoothness(self) -> float:
        """The mean m_i."""
        return float(self._m.mean())

    def strongest(self, radius: Floats) -> Floats:
        """At most the sum of all |v_i|, whatever X: between two users that are apart there is a set
        of users whose v_i = m_i (a_i - x_i) add up to the pull at least."""
        far = norms(self.a - self.a.mean(0))
        return np.minimum(radius, float(self._m @ (far + far.max(initial=0.0))) or 1.0)

    def fused(self, labels: Ints) -> PointCosts:
        """Those of clusters, but for a constant."""
        m = np.asarray(np.bincount(labels, self._m), np.float64)
        total = [np.bincount(labels, self._m * column) for column in self.a.T]
        return PointCosts(np.stack(total, 1) / m[:, None], m)


@dataclass(frozen=True)
class LossCosts:
    """The costs of a `Minimised` object."""

    losses: Minimised

    def __post_init__(self) -> None:
        """Refuse single precision, with which no gap gets below 1e-7 of the objective."""
        if self.losses.dtype != torch.float64:
            raise ModelError(f"sum of norms: losses are {self.losses.dtype}; make them float64.")

    @property
    def n(self) -> int:
        """The number of users."""
        return self.losses.n

    @property
    def d(self) -> int:
        """The number of a user's parameters."""
        return self.losses.d

    def value(self, x: Floats) -> Floats:
        """f_i(x_i)."""
        return _array(self.losses.value(self._tensor(x)))

    def gradient(self, x: Floats) -> Floats:
        """Gradients of all users."""
        return _array(self.losses.gradient(self._tensor(x)))

    def hessian(self, x: Floats) -> Floats:
        """Hessians of all users."""
        return _array(self.losses.hessian(self._tensor(x)))

    def slack(self, x: Floats, v: Floats) -> Floats:
        """The two floats of `user_terms` as one; never below 0."""
        at, least = user_terms(self.losses, x, v)
        return np.maximum(at - least, 0.0)

    def minimise(self) -> Floats:
        """The local models."""
        return _array(self.losses.minimise())

    def smoothness(self) -> float:
        """The mean of the L_i."""
        return float(self.losses.smoothness().mean())

    def strongest(self, radius: Floats) -> Floats:
        """The radii: how far gradients go is not known."""
        return radius

    def _tensor(self, x: Floats) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(x)).to(self.losses.device)


def user_terms(losses: Minimised, x: Floats, v: Floats) -> tuple[Floats, Floats]:
    """The users' terms of the certificate: f_i(x_i) + <v_i, x_i>, and its minimum over x.

    The minimum is -inf for a user who has none, such as one with a single class whose v_i pulls
    the intercept away.
    """
    at, slope = (
        torch.from_numpy(np.ascontiguousarray(y)).to(losses.device, losses.dtype) for y in (x, v)
    )
    best = losses.minimise(slope, at)
    here = losses.value(at) + (slope * at).sum(1)
    least = losses.value(best) + (slope * best).sum(1)
    least = torch.where(torch.isfinite(best).all(1) & torch.isfinite(least), least, -torch.inf)
    return _array(here), _array(least)


@dataclass(frozen=True)
class Fused:
    """The costs of clusters: F_k(x) = sum over the users i of cluster k of f_i(x)."""

    costs: Costs
    labels: Ints

    @cached_property
    def n(self) -> int:
        """The number of clusters."""
        return int(self.labels.max()) + 1

    @property
    def d(self) -> int:
        """The number of parameters."""
        return self.costs.d

    def value(self, x: Floats) -> Floats:
        """F_k(x_k)."""
        return self._sum(self.costs.value(x[self.labels]))

    def gradient(self, x: Floats) -> Floats:
        """Their gradients."""
        return self._sum(self.costs.gradient(x[self.labels]))

    def hessian(self, x: Floats) -> Floats:
        """Their Hessians."""
        return self._sum(self.costs.hessian(x[self.labels]))

    def _sum(self, own: Floats) -> Floats:
        """Over each cluster's users."""
        total = np.zeros((self.n, *own.shape[1:]))
        np.add.at(total, self.labels, own)
        return total


def _array(tensor: Tensor) -> Floats:
    return np.asarray(tensor.detach().cpu().numpy(), np.float64)
