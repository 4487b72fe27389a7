"""The multinomial loss around known clusters: users' deviations, and descent to the centres.

Lyu et al. 2022, (2.3), f_i being the multinomial loss of linear models with d coefficients for each
of C classes, gamma and lambda one number for slopes and one for intercepts:

    min over theta, w, wbar of  sum_i f_i(theta_i) + gamma/2 |theta_i - w_j|^2
                                + sum_j lambda/2 |w_j - wbar|^2 + rho/2 |wbar|^2.

(2.3) has no rho, and then no minimum where one model tells all records apart without error. A user
minimises over its deviation alone: what is left, and its slope in w_j, add up over a cluster
(`Block.told`), and the server goes down along these sums (centre_descent.py).

Models are (d, C) here, the intercept last.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from corsage.core.arrays import Floats
from corsage.solvers.known_clusters.centre_descent import (
    ARMIJO_SHARE,
    DESCENT_ROUNDING,
    MOST_STEP_HALVINGS,
)
from corsage.solvers.known_clusters.folds import HELD_OUT_FOLDS

NO_FOLD = HELD_OUT_FOLDS
"""A fold that has no records: nothing is left out."""
MOST_DEVIATION_STEPS, MOST_DEVIATION_PRODUCTS = 60, 100
"""Newton's steps of a user, and products with its Hessian in each."""
SLOPE_OF_NOBODY, LEAST_LEFT = 1e-10, 1e-4
"""The share of a user's slopes that is none; and what products leave of one in the end."""
MOST_LEFT = 0.1
"""What they leave of one at first."""


class Told(NamedTuple):
    """The rest of losses, its slope in the centre (d, C), and the cost of left-out records.

    `held` are the cross-entropy of these, and how many they are.
    """

    value: float
    slope: Floats
    held: Floats


@dataclass(frozen=True, eq=False)
class Block:
    """Users with about as many records.

    Parameters
    ----------
    z, y : rows, an intercept's 1 last (n, m, d), and 1 for a row's class (n, m, C); 0 if padded.
    weight, held : of a row in the loss, and in what is left out (n, m).
    """

    z: Tensor
    y: Tensor
    weight: Tensor
    held: Tensor

    @cached_property
    def axes(self) -> dict[bytes, tuple[Tensor, Tensor]]:
        """Those that were found: of the columns that pulls have in common, by these."""
        return {}

    def along(self, pulls: Floats) -> tuple[Tensor, Tensor]:
        """Rows (n, m, r) and axes (n, d, r) of deviations, in units in which their pull is 1.

        Of columns of one pull only what a user's own rows span is of any use.
        """
        rows, axes = list[Tensor](), list[Tensor]()
        for pull in np.unique(pulls[np.isfinite(pulls)]):
            some = pulls == pull
            own, turned = self._spanned(some)
            unit = 1 / np.sqrt(pull)
            rows.append(unit * own)
            axes.append(unit * turned)
        if not rows:
            n, m, d = self.z.shape
            return self.z.new_zeros(n, m, 0), self.z.new_zeros(n, d, 0)
        return torch.cat(rows, 2), torch.cat(axes, 2)

    def _spanned(self, some: Floats) -> tuple[Tensor, Tensor]:
        """Rows in the axes of some columns, and these axes."""
        if (key := some.tobytes()) not in self.axes:
            chosen = torch.from_numpy(np.flatnonzero(some))
            z, (n, m, d) = self.z[:, :, chosen], self.z.shape
            eye = torch.eye(d, dtype=z.dtype, device=z.device)[:, chosen]
            if len(chosen) <= m:
                self.axes[key] = z, eye.expand(n, -1, -1)
            else:
                u, s, v = torch.linalg.svd(z, full_matrices=False)
                self.axes[key] = u * s[:, None], eye @ v.mT
        return self.axes[key]

    def settled(
        self, centre: Floats, pulls: Floats, ridge: float = 0.0
    ) -> tuple[Tensor, Tensor, Tensor]:
        """theta_i (n, d, C) around one centre (d, C), their scores, and what is left of losses.

        `pulls` are those of each coefficient (d,). With a ridge c on f_i it is the pull
        gamma + c towards gamma/(gamma + c) times the centre.
        """
        whole = pulls + ridge
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(np.isinf(pulls), 1.0, pulls / np.where(whole > 0, whole, 1.0))
            tension = np.where(np.isinf(pulls), ridge, share * ridge)
        w = torch.from_numpy(share[:, None] * centre).to(self.z)
        rows, axes = self.along(whole)
        e, scores, left = settled(self.z @ w, rows, self.y, self.weight)
        return w + axes @ e, scores, left + float((tension[:, None] * centre**2).sum()) / 2

    def told(self, centre: Floats, pulls: Floats, ridge: float = 0.0) -> Told:
        """The sums over all users."""
        theta, scores, left = self.settled(centre, pulls, ridge)
        away = self.weight[:, :, None] * (scores.softmax(2) - self.y)
        slope = torch.einsum("nmd,nmc->dc", self.z, away) + ridge * theta.sum(0)
        held = torch.stack([(self.held * entropies(scores, self.y)).sum(), self.held.sum()])
        own = slope.cpu().numpy() * (pulls > 0)[:, None]  # nobody is drawn to a centre by 0
        return Told(float(left.sum()), own, held.cpu().numpy())


def entropies(scores: Tensor, y: Tensor) -> Tensor:
    """-log softmax of the right class (n, m)."""
    return scores.logsumexp(2) - (scores * y).sum(2)


def settled(
    offset: Tensor, rows: Tensor, y: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """argmin of sum weight_r entropy(offset_r + e'row_r) + |e|^2/2, the scores, and the minimum.

    Newton's method, each step by conjugate gradients, of all users at once. e is (n, r, C).
    """
    e = offset.new_zeros(len(rows), rows.shape[2], y.shape[2])
    scores, weighted = offset, weight[:, :, None]
    value = (weight * entropies(scores, y)).sum(1)
    scale = (weighted * rows).norm(dim=2).sum(1) + torch.finfo(rows.dtype).tiny
    close = max(SLOPE_OF_NOBODY, 100 * torch.finfo(rows.dtype).eps)
    for _ in range(MOST_DEVIATION_STEPS if rows.shape[2] else 0):
        told = scores.softmax(2)
        slope = rows.mT @ (weighted * (told - y)) + e
        size = slope.flatten(1).norm(dim=1)
        if bool((size <= close * scale).all()):
            break
        step = downhill(
            rows, told, weighted, slope, (size / scale).sqrt().clamp(LEAST_LEFT, MOST_LEFT)
        )
        ahead, promised = rows @ step, (slope * step).sum((1, 2))
        length = torch.ones_like(size)
        for _ in range(MOST_STEP_HALVINGS):
            by = length[:, None, None]
            there = scores + by * ahead
            after = (weight * entropies(there, y)).sum(1) + (e + by * step).square().sum((1, 2)) / 2
            far = after > value + ARMIJO_SHARE * length * promised + DESCENT_ROUNDING * value.abs()
            if not bool(far.any()):
                break
            length = torch.where(far, length / 2, length)
        e, scores, value = e + by * step, there, after
    return e, scores, value


def downhill(rows: Tensor, told: Tensor, weight: Tensor, slope: Tensor, left: Tensor) -> Tensor:
    """Newton's step, but for the share `left` of the slope."""
    step, rest = torch.zeros_like(slope), -slope
    along, size = rest, rest.square().sum((1, 2))
    enough = left.square() * size
    for _ in range(MOST_DEVIATION_PRODUCTS):
        going = size > enough
        if not bool(going.any()):
            break
        moved = told * (rows @ along)
        bent = rows.mT @ (weight * (moved - told * moved.sum(2, keepdim=True))) + along
        length = torch.where(going, size / (along * bent).sum((1, 2)), 0)[:, None, None]
        step, rest = step + length * along, rest - length * bent
        after = rest.square().sum((1, 2))
        along = rest + torch.where(going, after / size, 0)[:, None, None] * along
        size = after
    return step
