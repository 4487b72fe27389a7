"""Heads in closed form over a trained body: of each user's records, and what all users' come to.

With z a record's features and a 1 last, (d,), all users' records come to S = mean of z z' and
B = mean of y z' (C, d), y having one column a class, or being the number itself. From these:

- exact: Theta = argmin |Z Theta - Y|^2 + gamma |Theta - W|^2 around W = (S + delta I)^-1 B', which
  is all users' head; scores times a heat before the softmax.
- gauss: a class is N(mu_c, V), its mean (n_c x_c + kappa m_c) / (n_c + kappa) between the user's
  and all users', V all users' covariance within classes plus delta I; its frequency is
  (n_c + count g_c) / (n + count), and the discriminants are multiplied by a heat.
- prior: the logits of one head for all, plus log of the user's frequencies over all users'.

Features are in units of their root mean square over all users, so gamma, kappa and count are so many
records. Each strength is found from records that are left out, in closed form: a record from its
user's own part of a head, and its user from what all users' come to (`Means.without`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from corsage.networks.exact.exact_heads import left_out, one

EXACT, GAUSS, PRIOR = HEADS = ("exact", "gauss", "prior")
DELTAS = (1e-3, 1e-2, 1e-1)
GAMMAS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
HEATS = (1.0, 1.5, 2.2, 3.3, 5.0, 7.0, 10.0, 15.0)
"""Factors of the scores of `exact`: those of squared errors lie between 0 and 1."""
KAPPAS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
COOLER = (0.1, 0.2, 0.35, 0.6, 1.0)
"""Factors of the discriminants of `gauss`: features of a network are no Gaussians."""
COUNTS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1e3, 1e6)
ALL_USERS = 1e12
"""A class's mean is all users'."""
RARE = 1e-3
"""What classes have of all users' frequencies beyond those counted: one that nobody has, too."""


class Strength(NamedTuple):
    """The strengths of a head: delta, what it is pulled by (gamma, kappa), its heat, its count."""

    ridge: float = 0.0
    pull: float = 0.0
    heat: float = 1.0
    count: float = 0.0


def grid(head: str, numbers: bool, one_head: bool) -> list[Strength]:
    """The strengths that are tried for a head; `one_head`: the method has one for all."""
    if head == EXACT:
        heats = (1.0,) if numbers else HEATS
        return [Strength(*some) for some in product(DELTAS, GAMMAS, heats)]
    if head == PRIOR and one_head:
        return [Strength(count=count) for count in COUNTS]
    pulls = KAPPAS if head == GAUSS else (ALL_USERS,)
    return [Strength(*some) for some in product(DELTAS, pulls, COOLER, COUNTS)]


@dataclass(frozen=True)
class Means:
    """All users' S (d, d) and B (C, d), or one user's own."""

    second: Tensor
    first: Tensor

    @classmethod
    def of(cls, z: Tensor, y: Tensor) -> Means:
        """Those of a user's records."""
        return cls(z.t() @ z / len(z), y.t() @ z / len(z))

    def without(self, own: Means, share: float) -> Means:
        """Those of all others, where a user had such a share; of all, where there are no others."""
        if share >= 1:
            return self
        parts = (self.second, own.second), (self.first, own.first)
        return Means(*((whole - share * part) / (1 - share) for whole, part in parts))

    @property
    def unit(self) -> Tensor:
        """The root mean square of features, which is 1 for the last."""
        middle = self.second.diagonal()[:-1].mean().clamp_min(1e-30).sqrt()
        return torch.cat([middle.expand(len(self.second) - 1), middle.new_ones(1)])

    def over(self, unit: Tensor) -> Means:
        """The same of features that are divided by a unit."""
        return Means(self.second / unit / unit[:, None], self.first / unit)

    def centre(self, delta: float) -> Tensor:
        """W (d, C); the last row, which is of the 1, is not drawn to 0."""
        ridge = torch.full_like(self.second[0], delta)
        ridge[-1] = 1e-9
        return torch.linalg.solve(self.second + ridge.diag(), self.first.t())

    def classes(self) -> tuple[Tensor, Tensor, Tensor]:
        """Frequencies g (C,), means m (C, d-1) and the covariance within classes."""
        g, middle = self.first[:, -1].clamp_min(0), self.second[-1, :-1]
        m = torch.where(g[:, None] > 0, self.first[:, :-1] / g.clamp_min(1e-30)[:, None], middle)
        within = self.second[:-1, :-1] - (m * g[:, None]).t() @ m
        return (g + RARE / len(g)) / (1 + RARE), m, within


@dataclass(frozen=True)
class Own:
    """A user's records over all users' unit: Z (n, d), Y (n, C), labels, and one head's logits."""

    z: Tensor
    y: Tensor
    labels: Tensor
    logits: Tensor | None = None

    def over(self, unit: Tensor) -> Own:
        """The same with features in that unit."""
        return Own(self.z / unit, self.y, self.labels, self.logits)


def head(name: str, own: Own, means: Means, strength: Strength) -> Tensor:
    """Theta (d, C) of a user; of `prior` what is added to the bias of one head for all (C,)."""
    unit = means.unit
    own, means = own.over(unit), means.over(unit)
    if name == EXACT:
        w = means.centre(strength.ridge)
        return one(own.z, own.y, w, strength.pull) * strength.heat / unit[:, None]
    if name == PRIOR and own.logits is not None:
        return told(own.y.sum(0), means.classes()[0], strength.count)
    return _discriminants(own, means, strength) / unit[:, None]


def _discriminants(own: Own, means: Means, strength: Strength) -> Tensor:
    """Theta (d, C) of Gaussian classes: V^-1 mu_c, and -mu_c' V^-1 mu_c / 2 + log frequency."""
    g, m, within = means.classes()
    n, x = own.y.sum(0), own.y.t() @ own.z[:, :-1]
    mu = (x + strength.pull * m) / (n + strength.pull)[:, None]
    weight = inverse(within, strength.ridge) @ mu.t()
    bias = -strength.heat / 2 * (mu.t() * weight).sum(0) + told(n, g, strength.count) + g.log()
    return torch.cat([strength.heat * weight, bias[None]])


def told(n: Tensor, g: Tensor, count: float) -> Tensor:
    """Log of the frequencies of a user's classes over all users', n (.., C) being its records."""
    return (n / g + count).log() - (n.sum(-1, keepdim=True) + count).log()


def inverse(matrix: Tensor, ridge: float) -> Tensor:
    """The inverse of a covariance plus a ridge, which rounding may have made less than 0."""
    values, vectors = torch.linalg.eigh(matrix)
    found: Tensor = (vectors / (values.clamp_min(0) + ridge)) @ vectors.t()
    return found


def votes(name: str, own: Own, means: Means, numbers: bool) -> Tensor:
    """Loss and error of each of the grid (2, G), over records that are left out.

    `means` are those of other users. Of numbers both are squared errors.
    """
    unit = means.unit
    own, means = own.over(unit), means.over(unit)
    strengths = grid(name, numbers, own.logits is not None)
    if name == EXACT:
        return _of_exact(own, means, numbers)
    left = own.y.sum(0) - own.y  # each record's own class has one less
    if name == PRIOR and own.logits is not None:
        scores = (own.logits + told(left, means.classes()[0], s.count) for s in strengths)
        return torch.stack([judged(one, own.labels) for one in scores], 1)
    return _of_gauss(own, means, left, strengths)


def _of_exact(own: Own, means: Means, numbers: bool) -> Tensor:
    """Those of `exact`."""
    found = []
    for delta in DELTAS:
        w = means.centre(delta)
        for gamma in GAMMAS:
            scores = left_out(own.z, own.y, w, gamma)
            if numbers:
                found.append((scores - own.y).square().mean().expand(2))
            else:
                found += [judged(heat * scores, own.labels) for heat in HEATS]
    return torch.stack(found, 1)


def _of_gauss(own: Own, means: Means, left: Tensor, strengths: list[Strength]) -> Tensor:
    """Those of `gauss`: mu_y of a record's own class is found without it.

    With T = x_c + kappa m_c and nu = n_c + kappa, less the record in its own class, a discriminant
    is z'V^-1 T / nu - T'V^-1 T / (2 nu^2).
    """
    g, m, within = means.classes()
    z, mine = own.z[:, :-1], own.y.bool()
    x = own.y.t() @ z
    at: dict[tuple[float, float], Tensor] = {}
    for delta in dict.fromkeys(s.ridge for s in strengths):
        precision = inverse(within, delta)
        zv, xv, mv = (part @ precision for part in (z, x, m))
        zz = (zv * z).sum(1, keepdim=True)
        zx, zm = zv @ x.t(), zv @ m.t()
        xx, xm, mm = (xv * x).sum(1), (xv * m).sum(1), (mv * m).sum(1)
        for kappa in dict.fromkeys(s.pull for s in strengths):
            across, square = zx + kappa * zm, xx + 2 * kappa * xm + kappa**2 * mm
            less = torch.where(mine, square - 2 * across + zz, square)
            across, nu = torch.where(mine, across - zz, across), left + kappa
            at[delta, kappa] = across / nu - less / (2 * nu.square())
    frequent = {count: told(left, g, count) + g.log() for count in COUNTS}
    scores = (s.heat * at[s.ridge, s.pull] + frequent[s.count] for s in strengths)
    return torch.stack([judged(one, own.labels) for one in scores], 1)


def judged(scores: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy, and the share that is wrong."""
    wrong = (scores.argmax(1) != labels).double().mean()
    return torch.stack([F.cross_entropy(scores, labels), wrong])

