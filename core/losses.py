"""Losses of one number u = <w, a> + b against a label: value, slope and curvature in u.

Every model with a single output has one of these: the convex methods use all three functions, the
training loops the value (and autograd), the batched ones the slope.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from corsage.core.registry import LIKELIHOODS, attached

Function = Callable[[Tensor, Tensor], Tensor]
Link = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ScalarLoss:
    """phi(u, y), elementwise.

    Parameters
    ----------
    name : as the key `loss` has it.
    value, slope, curvature : phi, its derivative and its (generalised) second one, in u.
    above : curvature of a parabola through phi(u), with its slope there, that phi is below.
    bound : the largest curvature there is.
    classes : y are the two classes 0 and 1; else y are numbers.
    mean, link : the mean of y by u, which a family's model predicts, and the way back.
    """

    name: str
    value: Function
    slope: Function
    curvature: Function
    above: Function
    bound: float
    classes: bool
    mean: Link = lambda u: u
    link: Link = lambda mean: mean


def sign(y: Tensor, like: Tensor) -> Tensor:
    """Classes 0 and 1 as l = -1 and +1."""
    return 2 * y.to(like.dtype) - 1


def _hinge(u: Tensor, y: Tensor) -> Tensor:
    return torch.clamp(1 - sign(y, u) * u, min=0)


def _residual(u: Tensor, y: Tensor) -> Tensor:
    return u - y.to(u.dtype)


LOGISTIC = ScalarLoss(
    "logistic",
    value=lambda u, y: F.softplus(-sign(y, u) * u),
    slope=lambda u, y: torch.sigmoid(u) - y.to(u.dtype),
    curvature=lambda u, y: torch.sigmoid(u) * torch.sigmoid(-u),
    above=lambda u, y: torch.where(u.abs() < 1e-4, 0.25, torch.tanh(u / 2) / (2 * u)),
    bound=0.25,
    classes=True,
    mean=torch.sigmoid,
    link=torch.logit,
)
SQUARED_HINGE = ScalarLoss(
    "squared-hinge",
    value=lambda u, y: _hinge(u, y) ** 2,
    slope=lambda u, y: -2 * sign(y, u) * _hinge(u, y),
    curvature=lambda u, y: 2.0 * (_hinge(u, y) > 0).to(u.dtype),
    above=lambda u, y: torch.full_like(u, 2.0),
    bound=2.0,
    classes=True,
)
SQUARED_LOSS = ScalarLoss(
    "squared",
    value=lambda u, y: _residual(u, y) ** 2 / 2,
    slope=_residual,
    curvature=lambda u, y: torch.ones_like(u),
    above=lambda u, y: torch.ones_like(u),
    bound=1.0,
    classes=False,
)


def huber(delta: float) -> ScalarLoss:
    """r^2/2 up to |r| = delta, linear beyond."""

    def value(u: Tensor, y: Tensor) -> Tensor:
        size = _residual(u, y).abs()
        near = torch.clamp(size, max=delta)
        return near * (size - near / 2)

    return ScalarLoss(
        "huber",
        value=value,
        slope=lambda u, y: torch.clamp(_residual(u, y), -delta, delta),
        curvature=lambda u, y: (_residual(u, y).abs() <= delta).to(u.dtype),
        above=lambda u, y: delta / _residual(u, y).abs().clamp(min=delta),
        bound=1.0,
        classes=False,
    )


def scalar_loss(name: str, delta: float = 1.0) -> ScalarLoss | None:
    """The loss of that name; None for cross-entropy, which has an output for each class."""
    if name == "huber":
        return huber(delta)
    if name in LIKELIHOODS:
        loss: ScalarLoss = attached("families").FAMILIES[name].loss
        return loss
    known = {loss.name: loss for loss in (LOGISTIC, SQUARED_HINGE, SQUARED_LOSS)}
    return known.get(name)
