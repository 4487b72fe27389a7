"""Families of generalised linear models: log likelihoods of a score u under their usual links.

A family is a value of the key `loss`: the logistic loss is Bernoulli's, the squared one Gauss's,
and here are those that are losses of nothing but a likelihood. A row's `weight` multiplies its log
likelihood; a binomial row is the share of successes, and its weight the trials; of a gamma row it
multiplies the shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from corsage.core.losses import LOGISTIC, Function, Link, ScalarLoss

SMALLEST = 1e-37
"""The least mean, or label, of which a logarithm is taken; a float32, too."""
LEAST_CHANCE = 1e-12
"""The same of a share."""
SHARE_ROUNDING = 1e-3
"""Shares of successes may be rounded to three digits: they are of whole numbers all the same."""
MOST_OFFSET = 300.0
"""The logarithm of an exposure that a double can hold, with room for scores beside it."""
OFFSETS = f"logarithms of exposures, from -{MOST_OFFSET:g} to {MOST_OFFSET:g}"
MOST_SHAPE = 25.0
"""Logarithm of a shape: of larger ones rounding is all that tells them apart."""


LIKE_POISSON = 1e8
"""A size of the negative binomial from which on it is next to Poisson's."""


class Row(NamedTuple):
    """Rows' labels and weights, and the logarithm of the family's shape, where it has one."""

    y: Tensor
    weight: Tensor
    shape: Tensor


@dataclass(frozen=True)
class Family:
    """A family with its link.

    Parameters
    ----------
    loss : what models are judged by: half the deviance of a row.
    likelihood : log p(y | u), with all constants.
    slope, curvature : d log p / du, and -d^2 log p / du^2.
    variance : of y over that of a row of weight 1 and no overdispersion, by its mean and shape.
    begin : a first guess of the mean, by label and weight.
    shaped : whether a shape is estimated, too.
    wants : labels that it takes, in words; `takes` tells.
    """

    loss: ScalarLoss
    likelihood: Callable[[Tensor, Row], Tensor]
    slope: Callable[[Tensor, Row], Tensor]
    curvature: Callable[[Tensor, Row], Tensor]
    variance: Callable[[Tensor, Tensor], Tensor]
    begin: Callable[[Tensor, Tensor], Tensor]
    takes: Callable[[Tensor], Tensor]
    wants: str
    shaped: bool = False

    @property
    def name(self) -> str:
        """As the key `loss` has it."""
        return self.loss.name


def _deviance(
    name: str,
    value: Function,
    slope: Function,
    curvature: Function,
    mean: Link = torch.exp,
    link: Link = lambda mean: mean.clamp(min=SMALLEST).log(),
) -> ScalarLoss:
    """Half a deviance as a loss; its curvature has no bound: 1 is its size near a score of 0."""

    def half(u: Tensor, y: Tensor) -> Tensor:
        return value(u, y).clamp(min=0.0)  # less is rounding

    return ScalarLoss(name, half, slope, curvature, curvature, 1.0, False, mean, link)


def _ylog(y: Tensor) -> Tensor:
    return torch.xlogy(y, y)


def _trials(row: Row) -> Tensor:
    """log of the ways to have so many successes in so many trials."""
    hits = row.weight * row.y
    misses = row.weight - hits
    return torch.lgamma(row.weight + 1) - torch.lgamma(hits + 1) - torch.lgamma(misses + 1)


def _logistic(u: Tensor, row: Row) -> Tensor:
    return row.weight * (row.y * u - F.softplus(u))


def _logistic_slope(u: Tensor, row: Row) -> Tensor:
    return row.weight * (row.y - torch.sigmoid(u))


def _logistic_curvature(u: Tensor, row: Row) -> Tensor:
    return row.weight * torch.sigmoid(u) * torch.sigmoid(-u)


def _half(y: Tensor, weight: Tensor) -> Tensor:
    return (weight * y + 0.5) / (weight + 1)


def _gamma(u: Tensor, row: Row) -> Tensor:
    """Of a shape nu, times the weight: the mean is exp u, the variance its square over that."""
    nu, y = row.weight * row.shape.clamp(max=MOST_SHAPE).exp(), row.y.clamp(min=SMALLEST)
    known = row.weight > 0
    safe = torch.where(known, nu, 1.0)
    found = safe * (safe.log() - u - y * torch.exp(-u)) + (safe - 1) * y.log() - torch.lgamma(safe)
    return torch.where(known, found, 0.0)


def _negative_binomial(u: Tensor, row: Row) -> Tensor:
    """Of a size k: the variance is mean + mean^2/k."""
    y, shape = row.y, row.shape.clamp(max=MOST_SHAPE)
    k, away = shape.exp(), u - shape
    near = y * (y - 1) / (2 * k) + y * shape  # Poisson's: logarithms of k! would be rounding
    rising = torch.where(k > LIKE_POISSON, near, torch.lgamma(y + k) - torch.lgamma(k))
    return row.weight * (rising - torch.lgamma(y + 1) + y * away - (y + k) * F.softplus(away))


def _negative_binomial_slope(u: Tensor, row: Row) -> Tensor:
    shape = row.shape.clamp(max=MOST_SHAPE)
    return row.weight * (row.y - (row.y + shape.exp()) * torch.sigmoid(u - shape))


def _negative_binomial_curvature(u: Tensor, row: Row) -> Tensor:
    shape = row.shape.clamp(max=MOST_SHAPE)
    away = u - shape
    return row.weight * (row.y + shape.exp()) * torch.sigmoid(away) * torch.sigmoid(-away)


POISSON_LOSS = _deviance(
    "poisson",
    lambda u, y: torch.exp(u) - y * u + _ylog(y) - y,
    lambda u, y: torch.exp(u) - y,
    lambda u, y: torch.exp(u),
)
GAMMA_LOSS = _deviance(
    "gamma",
    lambda u, y: u + y * torch.exp(-u) - 1 - y.clamp(min=SMALLEST).log(),
    lambda u, y: 1 - y * torch.exp(-u),
    lambda u, y: y * torch.exp(-u),
)
BINOMIAL_LOSS = _deviance(
    "binomial",
    lambda u, y: F.softplus(u) - y * u + _ylog(y) + _ylog(1 - y),
    lambda u, y: torch.sigmoid(u) - y,
    lambda u, y: torch.sigmoid(u) * torch.sigmoid(-u),
    mean=torch.sigmoid,
    link=lambda mean: torch.logit(mean, LEAST_CHANCE),
)

BERNOULLI = Family(
    LOGISTIC, _logistic, _logistic_slope, _logistic_curvature,
    lambda mean, shape: mean * (1 - mean), _half,
    lambda y: (y == 0) | (y == 1), "the classes 0 and 1",
)  # fmt: skip
BINOMIAL = Family(
    BINOMIAL_LOSS, lambda u, row: _logistic(u, row) + _trials(row),
    _logistic_slope, _logistic_curvature,
    lambda mean, shape: mean * (1 - mean), _half,
    lambda y: (y >= 0) & (y <= 1), "shares of successes from 0 to 1, and trials in weight-column",
)  # fmt: skip
POISSON = Family(
    POISSON_LOSS,
    lambda u, row: row.weight * (row.y * u - torch.exp(u) - torch.lgamma(row.y + 1)),
    lambda u, row: row.weight * (row.y - torch.exp(u)),
    lambda u, row: row.weight * torch.exp(u),
    lambda mean, shape: mean, lambda y, weight: y + 0.1,
    lambda y: (y >= 0) & (y == y.round()), "counts (0, 1, 2, ...)",
)  # fmt: skip
NEGATIVE_BINOMIAL = Family(
    ScalarLoss(**{**vars(POISSON_LOSS), "name": "negative-binomial"}),
    _negative_binomial, _negative_binomial_slope, _negative_binomial_curvature,
    lambda mean, shape: mean + mean.square() / shape.exp(), lambda y, weight: y + 0.1,
    POISSON.takes, POISSON.wants, shaped=True,
)  # fmt: skip
GAMMA = Family(
    GAMMA_LOSS, _gamma,
    lambda u, row: row.weight * row.shape.clamp(max=MOST_SHAPE).exp() * (row.y * torch.exp(-u) - 1),
    lambda u, row: row.weight * row.shape.clamp(max=MOST_SHAPE).exp() * row.y * torch.exp(-u),
    lambda mean, shape: mean.square() / shape.exp(), lambda y, weight: y,
    lambda y: y > 0, "numbers above 0", shaped=True,
)  # fmt: skip

FAMILIES = {one.name: one for one in (BERNOULLI, BINOMIAL, POISSON, NEGATIVE_BINOMIAL, GAMMA)}


def rules(loss: str) -> list[tuple[str, str]]:
    """Parts of a row, and what they must be; in the order of `broken`."""
    found = [("label", FAMILIES[loss].wants), ("weight", "numbers above 0"), ("offset", OFFSETS)]
    if loss == "binomial":
        found += [
            ("weight", "trials (1, 2, ...)"),
            ("label", "whole successes over the trials of weight-column"),
        ]
    return found


def broken(
    family: Family, y: Tensor, weight: Tensor, offset: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Of each rule the rows that break it, and the values that they have."""
    hits, room = weight * y, SHARE_ROUNDING * weight.clamp(min=1.0)
    found = [
        (~family.takes(y), y),
        (~(weight > 0), weight),
        (~(offset.abs() <= MOST_OFFSET), offset),
        ((weight - weight.round()).abs() > room, weight),
        ((hits - hits.round()).abs() > room, y),
    ]
    return found[: len(rules(family.name))]
