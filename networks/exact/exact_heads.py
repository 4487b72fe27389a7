"""Linear heads over a frozen body in closed form: every user's, for squared loss on each output.

For a user with features Z (m, d), the last of which is 1 if the head has a bias, and targets Y
(m, C), one column a class or the number itself:

    Theta = argmin 1/2 |Z Theta - Y|^2 + gamma/2 |Theta - W|^2 = (Z'Z + gamma I)^-1 (Z'Y + gamma W)
          = W + Z' (Z Z' + gamma I)^-1 (Y - Z W),

whichever system is the smaller one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from corsage.core.arrays import Floats, Floats32
from corsage.networks.batches import Examples
from corsage.networks.network import Network

HEATS: Floats = np.geomspace(0.5, 64.0, 29)
"""Factors that scores may be multiplied by before the softmax."""
RIVALS = 4
"""Heads, their centre, the most frequent class, a model that is trained alone: each tells some."""


@dataclass(frozen=True)
class Designs:
    """Z and Y of all users, one after the other; `sizes` rows belong to each.

    They are in the model's precision; what is solved from them at once is so in double.
    """

    z: Tensor
    y: Tensor
    labels: Tensor
    sizes: list[int]

    def users(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Each user's Z, Y and labels."""
        parts = (torch.split(part, self.sizes) for part in (self.z, self.y, self.labels))
        yield from zip(*parts, strict=True)

    def exact(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The same in double precision, one user at a time."""
        for z, y, labels in self.users():
            yield z.double(), y.double(), labels


def designs(network: Network, features: Tensor, data: Examples, classes: int) -> Designs:
    """The users' features with the bias's 1, and their targets."""
    z = features.flatten(1)
    if has_bias(network):
        z = torch.cat([z, z.new_ones(len(z), 1)], 1)
    numbers = network.criterion.numbers
    y = data.y[:, None] if numbers else F.one_hot(data.y, classes).to(z.dtype)
    return Designs(z, y, data.y, data.sizes.tolist())


def has_bias(network: Network) -> bool:
    """Tell whether the linear head has one."""
    return sum(1 for _ in network.blocks_of(network.head)) > 1


def sums(of: Designs) -> tuple[Floats, Floats, Floats]:
    """Z'Z as its lower triangle (n, d (d+1)/2), Z'Y (n, d C) and |Y|^2 (n,) of each user."""
    d = of.z.shape[1]
    below = torch.tril_indices(d, d, device=of.z.device)
    rows = [
        ((z.t() @ z)[below[0], below[1]], (z.t() @ y).flatten(), y.square().sum())
        for z, y, _ in of.exact()
    ]
    a, b, square = (torch.stack(part).cpu().numpy() for part in zip(*rows, strict=True))
    return a, b, square


def unpacked(rows: Floats, d: int) -> Floats:
    """Symmetric matrices (n, d, d) from their lower triangles."""
    below = np.tril_indices(d)
    full = np.zeros((len(rows), d, d))
    full[:, below[0], below[1]] = full[:, below[1], below[0]] = rows
    return full


def heads(of: Designs, centres: Floats, gamma: float) -> Floats:
    """Theta of each user (n, d, C) around its centre."""
    found = [
        one(z, y, torch.from_numpy(w).to(z.device), gamma)
        for (z, y, _), w in zip(of.exact(), centres, strict=True)
    ]
    return torch.stack(found).cpu().numpy()


def one(z: Tensor, y: Tensor, w: Tensor, gamma: float) -> Tensor:
    """Theta of one user, from the smaller system."""
    rest = y - z @ w
    if len(z) < z.shape[1]:
        return w + z.t() @ torch.cholesky_solve(rest, factor(z @ z.t(), gamma))
    return w + torch.cholesky_solve(z.t() @ rest, factor(z.t() @ z, gamma))


def least(z: Tensor, y: Tensor, labels: Tensor, w: Tensor, gamma: float, sigma2: float) -> float:
    """-log of how likely Y is around W, less what is alike for each W: the least of the loss."""
    z, y = z.double(), y.double()
    theta = one(z, y, w, gamma)
    loss = (y - z @ theta).square().sum() + gamma * (theta - w).square().sum()
    return float(loss) / (2 * sigma2) if sigma2 else 0.0


def expected(of: Designs, centres: Floats, shares: Floats, least: Callable[..., float]) -> Floats:
    """Each user's centre (n, d, C) of several (k, d, C), on average over what it may be.

    Users are in cluster j with probability `shares` (n, k) before their rows are seen, and
    proportional to that times exp(-least) when they are. A head is linear in its centre for the
    squared loss: there the head around the mean is the mean of the heads.
    """
    means = []
    several = torch.from_numpy(centres).to(of.z.device)
    for (z, y, labels), share in zip(of.users(), shares, strict=True):
        where = np.flatnonzero(share)
        cost = np.array([least(z, y, labels, several[j]) for j in where]) if len(where) > 1 else 0.0
        chance = share[where] * np.exp(np.min(cost) - cost)
        means.append(np.tensordot(chance / chance.sum(), centres[where], 1))
    return np.stack(means)


def factor(square: Tensor, gamma: float) -> Tensor:
    """The Cholesky factor of a matrix plus gamma I."""
    found: Tensor = torch.linalg.cholesky(square + gamma * torch.eye(len(square)).to(square))
    return found


def left_out(z: Tensor, y: Tensor, w: Tensor, gamma: float) -> Tensor:
    """A user's scores of each record (m, C) by a head that is found without that record.

    y - e / (1 - h): e are the residuals, h the diagonal of Z (Z'Z + gamma I)^-1 Z'.
    """
    rest = y - z @ w
    if len(z) < z.shape[1]:
        inverse = torch.cholesky_inverse(factor(z @ z.t(), gamma))
        return y - (inverse @ rest) / inverse.diagonal()[:, None]
    low = factor(z.t() @ z, gamma)
    residual = rest - z @ torch.cholesky_solve(z.t() @ rest, low)
    own = torch.linalg.solve_triangular(low, z.t(), upper=False).square().sum(0)
    out: Tensor = y - residual / (1 - own).clamp_min(1e-6)[:, None]
    return out


def calibration(of: Designs, centres: Floats, gamma: float) -> Floats:
    """Each user's cross-entropy on records that were left out, for all of HEATS; then the share of
    them that is wrong by its head, by its centre alone, and by its most frequent class.
    """
    found = []
    for (z, y, labels), w in zip(of.exact(), centres, strict=True):
        centre = torch.from_numpy(w).to(z.device)
        scores = left_out(z, y, centre, gamma)
        losses = [F.cross_entropy(heat * scores, labels) for heat in HEATS.tolist()]
        each = (scores, z @ centre, y.sum(0) - y)
        wrong = [(one.argmax(1) != labels).double().mean() for one in each]
        found.append(torch.stack([*losses, *wrong]))
    return torch.stack(found).cpu().numpy()


def as_rows(network: Network, theta: Floats) -> Floats32:
    """Theta (n, d, C) as flat heads (n, P_head): the weight, class by class, and the bias."""
    bias = theta.shape[1] - 1 if has_bias(network) else theta.shape[1]
    weight = theta[:, :bias].transpose(0, 2, 1).reshape(len(theta), -1)
    return np.concatenate([weight, theta[:, bias:].reshape(len(theta), -1)], 1, dtype=np.float32)


def as_theta(network: Network, rows: Floats32) -> Floats:
    """Flat heads (n, P_head) as Theta (n, d, C)."""
    classes, width = next(network.blocks_of(network.head)).shape
    weight = rows[:, : classes * width].reshape(-1, classes, width).transpose(0, 2, 1)
    bias = rows[:, classes * width :].reshape(len(rows), -1, classes)
    return np.concatenate([weight, bias], 1, dtype=np.float64)
