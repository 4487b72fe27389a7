"""Heads in closed form over a trained body: of each user's records, and what all users' come to.

With z a record's features and a 1 last, (d,), all users' records come to S = mean of z z' and
B = mean of y z' (C, d), y having one column a class, or being the number itself. From these:

- exact: Theta = argmin |Z Theta - Y|^2 + gamma |Theta - W|^2 around W = (S + delta I)^-1 B', which
  is all users' head; scores times a heat before the softmax.
- gauss: a class is N(mu_c, V), its mean (n_c x_c + kappa m_c) / (n_c + kappa) between the user's
  and all users', V all users' covariance within classes plus delta I; its frequency is
  (n_c + count g_c) / (n + count), and the discriminants are multiplied by a heat.
- prior: the logits of one head for all, plus log of the user's frequencies over all users'.

Features are in units of their root mean square over all users, so gamma, kappa and count are so
many records. Each strength is found from records that are left out, in closed form: a record from
its user's own part of a head, and its user from what all users' come to (`Means.without`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from corsage.core.arrays import Floats32
from corsage.core.configuration.key_groups import ModelKeys
from corsage.networks import batch_norm
from corsage.networks.build import Shape, build_network
from corsage.networks.exact.exact_heads import left_out, one
from corsage.networks.network import Network

EXACT_HEAD, GAUSS_HEAD, PRIOR_HEAD = CLOSED_HEADS = ("exact", "gauss", "prior")
RIDGES = (1e-3, 1e-2, 1e-1)
GAMMAS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
SCORE_HEATS = (1.0, 1.5, 2.2, 3.3, 5.0, 7.0, 10.0, 15.0)
"""Factors of the scores of `exact`: those of squared errors lie between 0 and 1."""
KAPPAS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
COOLER = (0.1, 0.2, 0.35, 0.6, 1.0)
"""Factors of the discriminants of `gauss`: features of a network are no Gaussians."""
PSEUDO_COUNTS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1e3, 1e6)
POOLED = (1.0, 0.3, 0.1, 0.0)
ALL_USERS = 1e12
"""A class's mean is all users'."""
OF_NOBODY = 1e-3
"""What classes have of all users' frequencies beyond those counted: one that nobody has, too."""
SINGLE_ROUNDING = 1e-6
"""A class of which no more is left than that is nobody else's: sums come in single precision."""


class Strength(NamedTuple):
    """The strengths of a head: delta, gamma or kappa, its heat, and all users' count.

    `pooled` is the share that all users' records have in what a user is drawn to, the others being
    of its cluster.
    """

    ridge: float = 0.0
    pull: float = 0.0
    heat: float = 1.0
    weight: float = 0.0
    pooled: float = 1.0


def undivided(network: Network, keys: ModelKeys, facts: tuple[Shape, int, int]) -> Network:
    """The network as a body and a head, whosever its parts are: `facts` are those it is built by.

    Parameters of users' own lie elsewhere in its vector, under the same names.
    """
    if not (keys.batch_norm == "personal" or keys.personal or keys.shared):
        return network
    plain = replace(keys, batch_norm="average", personal="", shared="")
    return build_network(plain, *facts, str(network.device))


def moved(flat: Floats32, network: Network, other: Network) -> Floats32:
    """A network's vector in the order of another's of the same parameters."""
    return flat if network is other else other.flatten(network.named(flat))


def comparable(network: Network, plain: Network) -> bool:
    """Tell whether users' features mean the same: their own are a head and BatchNorm at most."""
    own = {b.name for b in network.blocks_of(network.head)}
    own -= {b.name for b in plain.blocks_of(plain.head)}
    layers = tuple(f"{name}." for name in batch_norm.layers(plain.module))
    return all(name.startswith(layers) for name in own)


def grid(head: str, numbers: bool, one_head: bool, clusters: bool = False) -> list[Strength]:
    """The strengths that are tried for a head; `one_head`: the method has one for all."""
    if clusters:
        each = grid(head, numbers, one_head)
        return [one._replace(pooled=share) for share in POOLED for one in each]
    if head == EXACT_HEAD:
        heats = (1.0,) if numbers else SCORE_HEATS
        return [Strength(*some) for some in product(RIDGES, GAMMAS, heats)]
    if head == PRIOR_HEAD and one_head:
        return [Strength(weight=count) for count in PSEUDO_COUNTS]
    pulls = KAPPAS if head == GAUSS_HEAD else (ALL_USERS,)
    return [Strength(*some) for some in product(RIDGES, pulls, COOLER, PSEUDO_COUNTS)]


@dataclass(frozen=True, eq=False)
class Means:
    """All users' S (d, d) and B (C, d), or one user's own; what follows from them is found once."""

    second: Tensor
    first: Tensor

    @classmethod
    def of(cls, z: Tensor, y: Tensor) -> Means:
        """Those of a user's records."""
        return cls(z.t() @ z / len(z), y.t() @ z / len(z))

    def drawn(self, whole: Means, pooled: float) -> Means:
        """A cluster's, drawn to all users'."""
        pairs = (self.second, whole.second), (self.first, whole.first)
        return Means(*((1 - pooled) * own + pooled * every for own, every in pairs))

    def without(self, own: Means, share: float, numbers: bool = False) -> Means:
        """Those of all others, where a user had such a share; of all, where there are no others."""
        if share >= 1:
            return self
        parts = (self.second, own.second), (self.first, own.first)
        second, first = ((whole - share * part) / (1 - share) for whole, part in parts)
        nobody = first[:, -1:] * (1 - share) <= SINGLE_ROUNDING * self.first[:, -1:]
        return Means(second, first if numbers else torch.where(nobody, 0.0, first))

    @cached_property
    def unit(self) -> Tensor:
        """The root mean square of features, which is 1 for the last."""
        middle = self.second.diagonal()[:-1].mean().clamp_min(1e-30).sqrt()
        return torch.cat([middle.expand(len(self.second) - 1), middle.new_ones(1)])

    @cached_property
    def scaled(self) -> Means:
        """The same of features in their unit."""
        unit = self.unit
        return Means(self.second / unit / unit[:, None], self.first / unit)

    @cached_property
    def centres(self) -> dict[float, Tensor]:
        """The centres that were found."""
        return {}

    def centre(self, delta: float) -> Tensor:
        """W (d, C); the last row, which is of the 1, is not drawn to 0."""
        if delta not in self.centres:
            ridge = torch.full_like(self.second[0], delta)
            ridge[-1] = 1e-9
            whole = self.second + ridge.diag()
            self.centres[delta] = torch.linalg.solve(whole, self.first.t())
        return self.centres[delta]

    @cached_property
    def classes(self) -> tuple[Tensor, Tensor]:
        """Frequencies g (C,) and means m (C, d-1)."""
        g, middle = self.first[:, -1].clamp_min(0), self.second[-1, :-1]
        m = torch.where(g[:, None] > 0, self.first[:, :-1] / g.clamp_min(1e-30)[:, None], middle)
        return (g + OF_NOBODY / len(g)) / (1 + OF_NOBODY), m

    @cached_property
    def spectrum(self) -> tuple[Tensor, Tensor]:
        """The covariance within classes, by eigenvalues: rounding may have made one less than 0."""
        m = self.classes[1]
        within = self.second[:-1, :-1] - (m * self.first[:, -1:]).t() @ m
        values, vectors = torch.linalg.eigh(within)
        return values.clamp_min(0), vectors


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
    own, means = own.over(unit), means.scaled
    if name == EXACT_HEAD:
        w = means.centre(strength.ridge)
        return one(own.z, own.y, w, strength.pull) * strength.heat / unit[:, None]
    if name == PRIOR_HEAD and own.logits is not None:
        return told(own.y.sum(0), means.classes[0], strength.weight)
    return _discriminants(own, means, strength) / unit[:, None]


def _discriminants(own: Own, means: Means, strength: Strength) -> Tensor:
    """Theta (d, C) of Gaussian classes: V^-1 mu_c, and -mu_c' V^-1 mu_c / 2 + log frequency."""
    g, m = means.classes
    n, x = own.y.sum(0), own.y.t() @ own.z[:, :-1]
    mu = (x + strength.pull * m) / (n + strength.pull)[:, None]
    values, vectors = means.spectrum
    weight = vectors @ ((vectors.t() @ mu.t()) / (values + strength.ridge)[:, None])
    bias = -strength.heat / 2 * (mu.t() * weight).sum(0) + told(n, g, strength.weight) + g.log()
    return torch.cat([strength.heat * weight, bias[None]])


def told(n: Tensor, g: Tensor, count: float) -> Tensor:
    """Log of the frequencies of a user's classes over all users', n (.., C) being its records."""
    return (n / g + count).log() - (n.sum(-1, keepdim=True) + count).log()


def votes(name: str, own: Own, means: Means, numbers: bool) -> Tensor:
    """Loss and error of each of the grid (2, G), over records that are left out.

    `means` are those of other users. Of numbers both are squared errors.
    """
    own, means = own.over(means.unit), means.scaled
    if name == EXACT_HEAD:
        return _of_exact(own, means, numbers)
    left = own.y.sum(0) - own.y  # each record's own class has one less
    if name == PRIOR_HEAD and own.logits is not None:
        scores = [own.logits + told(left, means.classes[0], count) for count in PSEUDO_COUNTS]
        return judged(torch.stack(scores), own.labels)
    return _of_gauss(own, means, left, KAPPAS if name == GAUSS_HEAD else (ALL_USERS,))


def _of_exact(own: Own, means: Means, numbers: bool) -> Tensor:
    """Those of `exact`."""
    found, heats = [], own.z.new_tensor(SCORE_HEATS)[:, None, None]
    for delta, gamma in product(RIDGES, GAMMAS):
        scores = left_out(own.z, own.y, means.centre(delta), gamma)
        if numbers:
            found.append((scores - own.y).square().mean().expand(2, 1))
        else:
            found.append(judged(heats * scores, own.labels))
    return torch.cat(found, 1)


def _of_gauss(own: Own, means: Means, left: Tensor, pulls: tuple[float, ...]) -> Tensor:
    """Those of `gauss`: mu_y of a record's own class is found without it.

    With T = x_c + kappa m_c and nu = n_c + kappa, less the record in its own class, a discriminant
    is z'V^-1 T / nu - T'V^-1 T / (2 nu^2).
    """
    (g, m), (values, vectors), mine, found = means.classes, means.spectrum, own.y.bool(), []
    z, m = own.z[:, :-1] @ vectors, m @ vectors
    x, cooler = own.y.t() @ z, own.z.new_tensor(COOLER)[:, None, None, None]
    frequent = torch.stack([told(left, g, count) + g.log() for count in PSEUDO_COUNTS])
    for delta in RIDGES:
        zv, xv, mv = (part / (values + delta) for part in (z, x, m))
        zz, zx, zm = (zv * z).sum(1, keepdim=True), zv @ x.t(), zv @ m.t()
        xx, xm, mm = (xv * x).sum(1), (xv * m).sum(1), (mv * m).sum(1)
        for kappa in pulls:
            across, square = zx + kappa * zm, xx + 2 * kappa * xm + kappa**2 * mm
            less = torch.where(mine, square - 2 * across + zz, square)
            across, nu = torch.where(mine, across - zz, across), left + kappa
            scores = cooler * (across / nu - less / (2 * nu.square())) + frequent
            found.append(judged(scores.flatten(0, 1), own.labels))
    return torch.cat(found, 1)


def judged(scores: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy and the share that is wrong (2, k) of scores (k, n, C)."""
    right = labels[None, :, None].expand(len(scores), -1, 1)
    loss = scores.logsumexp(2) - scores.gather(2, right)[..., 0]
    wrong = scores.argmax(2) != labels
    return torch.stack([loss.mean(1), wrong.double().mean(1)])
