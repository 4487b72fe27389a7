"""Quadratic losses f(theta) = 1/2 theta' A theta - b' theta, one for each user and batch."""

from __future__ import annotations

import torch
from torch import Tensor


class Quadratics:
    """`models.gradients.Losses` of users u with A (streams, users, P, P), b (streams, users, P)."""

    def __init__(self, a: Tensor, b: Tensor, active: list[int]) -> None:
        self.a, self.b, self.active = a, b, active

    def gradient(
        self,
        theta: Tensor,
        step: int,
        out: Tensor,
        beta: float = 0.0,
        scale: float | Tensor = 1.0,
        stream: int = 0,
    ) -> None:
        """out <- beta out + scale (A theta - b)."""
        n = self.active[step]
        g = torch.einsum("upq,uq->up", self.a[stream, :n], theta[:n]) - self.b[stream, :n]
        g = g * (scale[:n, None] if isinstance(scale, Tensor) else scale)
        out[:n] = beta * out[:n] + g if beta else g

    def product(
        self, theta: Tensor, v: Tensor, step: int, out: Tensor, scale: float, stream: int = 0
    ) -> None:
        """out <- out + scale A v."""
        n = self.active[step]
        out[:n] += scale * torch.einsum("upq,uq->up", self.a[stream, :n], v[:n])
