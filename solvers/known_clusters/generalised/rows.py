"""Users' rows under a family, and each user's log marginal likelihood.

A user's scores are X(theta + R u) with u standard normal, R = sum_k tau_k basis_k: linear in tau.
So a variance is a square of tau, and a variance of 0 is no border but a place like any other. With
h(u) = log p(y | u) - |u|^2/2 largest at u^, and H = -h''(u^),

    Laplace:     h(u^) - log|H|/2
    quadrature:  log sum_k W_k exp(h(u^ + sqrt(2) z_k / sqrt(H)) + z_k^2) + ...   (one number u)

(Pinheiro and Bates 1995), with Gauss's and Hermite's z_k and W_k. Derivatives: `marginals`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from corsage.core.arrays import Floats, Ints
from corsage.core.families import SMALLEST, Family, Row
from corsage.solvers.known_clusters.generalised.jets import Jet
from corsage.solvers.known_clusters.generalised.marginals import Marginals, Place
from corsage.solvers.losses.padded import cut, pad

MOST_NUMBERS_AT_ONCE = 4_000_000
"""Numbers of users' rows, and of their matrices, that are held at once."""
MODE_STEPS, HALVINGS = 100, 40
MODE_FOUND = 1e-13
"""The mode is found if Newton's next step would gain less than this, as a share of 1 + |h|."""


class Block:
    """Users with about as many rows; rows that fill up have a weight of 0.

    Parameters
    ----------
    family : of the labels.
    x : (n, R, P), the intercept's 1 among them.
    row : labels and weights (n, R).
    """

    def __init__(self, family: Family, x: Tensor, row: Row) -> None:
        self.family, self.x, self.row = family, x, row

    def pieces(self, most: int) -> Iterator[Block]:
        """At most so many users of the block, or one."""
        for x, y, weight in zip(
            *(torch.split(part, max(1, most)) for part in (self.x, *self.row[:2])), strict=True
        ):
            yield Block(self.family, x, Row(y, weight, self.row.shape))

    def shaped(self, shape: Tensor) -> Row:
        """Rows with a shape; one a user, (n,)."""
        return self.row._replace(shape=shape[:, None] if shape.dim() else shape)

    def mode(self, theta: Tensor, root: Tensor, shape: Tensor) -> Tensor:
        """u^ (n, r) by Newton's method: h is concave; theta (n, P)."""
        z, fixed, row = self.x @ root, _scores(self.x, theta), self.shaped(shape)
        u = z.new_zeros(len(z), root.shape[-1])
        eye = torch.eye(root.shape[-1], dtype=z.dtype)

        def height(at: Tensor) -> Tensor:
            return self._likelihood(fixed + _scores(z, at), row) - at.square().sum(1) / 2

        now = height(u)
        for _ in range(MODE_STEPS):
            score = fixed + _scores(z, u)
            slope, weight = self.family.slope(score, row), self.family.curvature(score, row)
            pull = (z.mT @ slope[..., None])[..., 0] - u
            step = torch.linalg.solve((z * weight[..., None]).mT @ z + eye, pull[..., None])[..., 0]
            gain = (pull * step).sum(1)
            over = gain <= MODE_FOUND * (1 + now.abs())
            if bool(over.all()):
                return u.add(step)
            length = torch.ones_like(gain)
            for _ in range(HALVINGS):
                after = height(u + length[:, None] * step)
                short = ~over & ~(after >= now + 1e-4 * length * gain - MODE_FOUND * now.abs())
                if not bool(short.any()):
                    break
                length = torch.where(short, length / 2, length)
            u, now = u + length[:, None] * step, torch.where(after.isfinite(), after, now)
        return u

    def _likelihood(self, score: Tensor, row: Row) -> Tensor:
        return self.family.likelihood(score, row).sum(1)


class Rows:
    """All rows of some users.

    Parameters
    ----------
    family : of the labels.
    x, y, weight : rows of one user after the other; (N, P), (N,), (N,).
    sizes : rows a user.
    """

    def __init__(self, family: Family, x: Tensor, y: Tensor, weight: Tensor, sizes: Ints) -> None:
        self.family, self.x, self.y, self.weight = family, x, y, weight
        self.sizes = np.asarray(sizes, np.int64)

    @cached_property
    def blocks(self) -> list[tuple[Ints, Block]]:
        """Users with about as many rows, and their numbers."""
        first, found = np.cumsum(self.sizes) - self.sizes, []
        for users in cut(self.sizes, self.x.shape[1], self.x.device):
            own = self.sizes[users]
            begin = first[users] - (np.cumsum(own) - own)
            rows = torch.from_numpy(np.repeat(begin, own) + np.arange(int(own.sum())))
            x, y, weight = (pad(part[rows], own) for part in (self.x, self.y, self.weight))
            found.append((users, Block(self.family, x, Row(y, weight, y.new_zeros(())))))
        return found

    def modes(self, theta: Floats, root: Floats, shape: float = 0.0) -> Floats:
        """theta + R u^ of each user; theta (n, P) or (P,)."""
        own = torch.from_numpy(np.array(np.broadcast_to(theta, (len(self.sizes), len(root)))))
        found, r = torch.zeros_like(own), torch.from_numpy(np.array(root))
        for users, block in self.blocks:
            there = own[users]
            u = block.mode(there, r, torch.tensor(shape, dtype=own.dtype))
            found[users] = there + u @ r.T
        return found.numpy()

    def jets(
        self, theta: Floats, tau: Floats, basis: Floats, around: Floats, nodes: int
    ) -> tuple[Floats, Floats, Floats]:
        """The sum over all users of jets in psi = (theta, tau); tau's last is the shape, if any.

        Of the log marginal likelihood; or if theta is the model of a cluster, in directions
        `around` (P, c) of which it is yet to be found: of h(u^), of -log|H|/2, and of the slope and
        the curvature of h(u^) in these directions.
        """
        first, second, third, fourth = (
            torch.from_numpy(np.array(part)) for part in (theta, tau, basis, around)
        )
        q = len(basis)
        place = Place(first, second[:q], second[q:], third, fourth)
        shape, total = second[q:].sum(), list[Jet]()
        m, several = len(theta) + len(tau), max(nodes, place.directions.shape[1] ** 2)
        for _, block in self.blocks:
            wide = block.x.shape[1] * (first.numel() ** 2 + several) + m * m * several
            for piece in block.pieces(MOST_NUMBERS_AT_ONCE // wide):
                n = len(piece.x)
                u = piece.mode(first.expand(n, -1), place.root, shape)
                own = Marginals(self.family, piece.x, piece.row, place, u)
                total.append(own.jet(nodes).summed())
        found = [sum(each) for each in zip(*total, strict=True)]
        return found[0].numpy(), found[1].numpy(), found[2].numpy()

    def begin(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Sums of X'X, and of X'WX and X'Wz of the first step of iterated least squares.

        And of the squares of columns around their means within users, and of the squares of these.
        """
        mean = self.family.begin(self.y, self.weight)
        shape = torch.zeros((), dtype=self.x.dtype)
        score = self.family.loss.link(mean)
        if self.family.loss.mean is torch.sigmoid:
            heavy = self.weight * mean * (1 - mean)
        else:
            heavy = self.weight * mean.square() / self.family.variance(mean, shape)
        inner = (self.x * heavy[:, None]).T
        sizes = torch.from_numpy(self.sizes)
        user = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        none = self.x.new_zeros(len(sizes), self.x.shape[1])
        away = self.x - (none.index_add(0, user, self.x) / sizes[:, None])[user]
        own = none.index_add(0, user, away.square())
        within = torch.stack([own.sum(0), own.square().sum(0)])
        sums = self.x.T @ self.x, inner @ self.x, inner @ score, within
        return sums[0].numpy(), sums[1].numpy(), sums[2].numpy(), sums[3].numpy()

    def curved(self, theta: Floats, shape: float = 0.0) -> tuple[Floats, Floats]:
        """Hessians of the users' negative log likelihoods at theta (n, P), and their gradients."""
        d = self.x.shape[1]
        hessians, slopes = np.zeros((len(theta), d, d)), np.zeros((len(theta), d))
        for users, block in self.blocks:
            row = block.row._replace(shape=torch.tensor(shape, dtype=self.x.dtype))
            score = _scores(block.x, torch.from_numpy(theta[users]))
            slope, weight = -self.family.slope(score, row), self.family.curvature(score, row)
            hessians[users] = ((block.x * weight[..., None]).mT @ block.x).numpy()
            slopes[users] = (block.x.mT @ slope[..., None])[..., 0].numpy()
        return hessians, slopes

    def pearson(self, theta: Floats, shape: float = 0.0) -> float:
        """Pearson's chi^2 of rows around their users' models theta (n, P)."""
        user = np.repeat(np.arange(len(theta)), self.sizes)
        mean = self.family.loss.mean((self.x * torch.from_numpy(theta)[user]).sum(1))
        spread = self.family.variance(mean, torch.tensor(shape, dtype=mean.dtype))
        return float((self.weight * (self.y - mean).square() / spread.clamp(min=SMALLEST**2)).sum())


def _scores(x: Tensor, theta: Tensor) -> Tensor:
    """(n, R) of rows (n, R, k) and each user's numbers (n, k)."""
    return (x @ theta[..., None])[..., 0]
