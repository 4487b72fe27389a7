"""Losses that are distances to points, and the losses of some of the users."""

from __future__ import annotations

import numpy as np
import torch

from corsage.solvers.losses.quadratic import Quadratic


class Huber:
    """Huber's function of |x - a_i|: 1/2 |x - a_i|^2 up to delta, linear beyond."""

    def __init__(self, a, delta):
        self.a, self.delta = a, delta
        self.n, self.d = a.shape
        self.dtype, self.device = a.dtype, a.device

    def _share(self, r):
        return self.delta / r.clamp(min=self.delta)

    def value(self, x):
        r = (x - self.a).norm(dim=1)
        near = r.clamp(max=self.delta)
        return near * (r - near / 2)

    def gradient(self, x):
        v = x - self.a
        return v * self._share(v.norm(dim=1, keepdim=True))

    def hessian(self, x):
        """I, or delta/r (I - vv'/r^2) beyond delta."""
        v = x - self.a
        r = v.norm(dim=1, keepdim=True)
        v = torch.where(r > self.delta, v / r, 0)
        eye = torch.eye(self.d, dtype=self.dtype)
        return self._share(r)[..., None] * (eye - v[:, :, None] * v[:, None])

    def smoothness(self):
        return self.a.new_ones(self.n)

    def convexity(self):
        return self.a.new_zeros(self.n)

    def coercive(self):
        return torch.ones(self.n, dtype=torch.bool)

    def prox(self, centre, kappa, start=None):
        """a_i + v max(kappa/(1 + kappa), 1 - delta/(kappa |v|)), v = centre - a_i."""
        v = centre - self.a
        kappa = torch.as_tensor(kappa, dtype=self.dtype).expand(self.n)[:, None]
        far = 1 - self.delta / (kappa * v.norm(dim=1, keepdim=True))
        return self.a + v * torch.maximum(kappa / (1 + kappa), far)

    def minimise(self, slope=None, start=None):
        """a_i - slope_i; NaN where the slope is steeper than delta."""
        slope = torch.zeros_like(self.a) if slope is None else slope
        steep = slope.norm(dim=1, keepdim=True) > self.delta
        return torch.where(steep, torch.nan, self.a - slope)


def points(a, delta=None):
    """1/2 |x - a_i|^2, or Huber's function of |x - a_i|."""
    if delta is not None:
        return Huber(a, delta)
    return Quadratic(torch.eye(a.shape[1]).to(a).repeat(len(a), 1, 1), a, a.square().sum(1) / 2)


def picked(losses, some):
    """The losses of linear models of some of the users, made anew of their samples."""
    some = [*some]
    ends = np.cumsum(losses.counts)
    rows = np.concatenate([np.arange(ends[i] - losses.counts[i], ends[i]) for i in some])
    kind = ("loss", "scale", "ridge", "intercept", "classes")
    options = {name: getattr(losses, name) for name in kind if hasattr(losses, name)}
    return type(losses)(losses.features[rows], losses.labels[rows], losses.counts[some], **options)


def stepped(losses, users, centre, kappa):
    """The proximal steps of some users, as arrays."""
    whole, weight = torch.zeros(losses.n, losses.d).to(losses.dtype), torch.ones(losses.n)
    whole[users] = torch.from_numpy(centre)
    weight = weight.to(losses.dtype)
    weight[users] = torch.as_tensor(kappa, dtype=losses.dtype)
    return losses.prox(whole, weight)[users].numpy()
