"""The multinomial loss around known clusters: users' deviations, and descent to the centres.

Lyu et al. 2022, (2.3), f_i being the multinomial loss of linear models with d coefficients for each
of C classes, gamma and lambda one number for slopes and one for intercepts:

    min over theta, w, wbar of  sum_i f_i(theta_i) + gamma/2 |theta_i - w_j|^2
                                + sum_j lambda/2 |w_j - wbar|^2 + rho/2 |wbar|^2.

(2.3) has no rho, and then no minimum where one model tells all records apart without error. A user
minimises over its deviation alone: what is left, and its slope in w_j, add up over a cluster
(`Block.told`). The server goes down along these sums by L-BFGS (`Descent`, `Centres`) in the metric
of the bound of Boehning 1992, sum z z'/2 for every class, in which no curvature is above 1.

Models are (d, C) here, the intercept last.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from corsage.core.arrays import Floats
from corsage.solvers.known_clusters.folds import HELD_OUT_FOLDS

NO_FOLD = HELD_OUT_FOLDS
"""A fold that has no records: nothing is left out."""
BOUND = 0.5
"""The largest curvature in a sample's scores."""
MOST_STEPS, MOST_PRODUCTS, MOST_HALVINGS = 60, 100, 40
"""Newton's steps of a user, products with its Hessian in each, and halvings of a step or way."""
CLOSE, CLOSEST = 1e-10, 1e-4
"""The share of a user's slopes that is none; and what products leave of one in the end."""
LOOSE = 0.1
"""What they leave of one at first."""
ENOUGH_DOWN = 1e-4
"""The share of what a slope promises that a step must bring (Armijo 1966)."""
ROUNDED = 1e-12
"""A share of a sum that is rounding."""
REMEMBERED = 20
"""Steps that the curvature is known from."""


class Told(NamedTuple):
    """What is left of losses, its slope in the centre (d, C), and what left-out records cost.

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

        `pulls` are those of each coefficient (d,). With a ridge c on f_i it is the pull gamma + c towards gamma/(gamma + c) times the centre.
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
    close = max(CLOSE, 100 * torch.finfo(rows.dtype).eps)
    for _ in range(MOST_STEPS if rows.shape[2] else 0):
        told = scores.softmax(2)
        slope = rows.mT @ (weighted * (told - y)) + e
        size = slope.flatten(1).norm(dim=1)
        if bool((size <= close * scale).all()):
            break
        step = downhill(rows, told, weighted, slope, (size / scale).sqrt().clamp(CLOSEST, LOOSE))
        ahead, promised = rows @ step, (slope * step).sum((1, 2))
        length = torch.ones_like(size)
        for _ in range(MOST_HALVINGS):
            by = length[:, None, None]
            there = scores + by * ahead
            after = (weight * entropies(there, y)).sum(1) + (e + by * step).square().sum((1, 2)) / 2
            far = after > value + ENOUGH_DOWN * length * promised + ROUNDED * value.abs()
            if not bool(far.any()):
                break
            length = torch.where(far, length / 2, length)
        e, scores, value = e + by * step, there, after
    return e, scores, value


def downhill(rows: Tensor, told: Tensor, weight: Tensor, slope: Tensor, left: Tensor) -> Tensor:
    """Newton's step, but for what is `left` of the slope."""
    step, rest = torch.zeros_like(slope), -slope
    along, size = rest, rest.square().sum((1, 2))
    enough = left.square() * size
    for _ in range(MOST_PRODUCTS):
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


@dataclass
class Descent:
    """L-BFGS (Nocedal 1980) that is told values and slopes of where it wants to look.

    Parameters
    ----------
    at : where it is.
    first : the length of the first slope; 0: it is not known yet.
    """

    at: Floats
    first: float = 0.0
    value: float = np.inf
    slope: Floats = field(default_factory=lambda: np.zeros(0))
    way: Floats = field(default_factory=lambda: np.zeros(0))
    length: float = 0.0
    steps: list[tuple[Floats, Floats]] = field(default_factory=list)
    stuck: bool = False

    @property
    def next(self) -> Floats:
        """Where to look."""
        return self.at + self.length * self.way if self.way.size else self.at

    @property
    def left(self) -> float:
        """The slope, as a share of the first one."""
        return float(np.linalg.norm(self.slope)) / self.first if self.first else 0.0

    def told(self, value: float, slope: Floats) -> None:
        """Go there, if it is low enough; else look again at half the way."""
        if self.way.size:
            least = self.value + ENOUGH_DOWN * self.length * float(self.slope @ self.way)
            if not value <= least + ROUNDED * abs(self.value):
                self.length /= 2
                self.stuck = self.length < 2.0**-MOST_HALVINGS
                return
            moved, bent = self.length * self.way, slope - self.slope
            if moved @ bent > ROUNDED * np.linalg.norm(moved) * np.linalg.norm(bent):
                self.steps = [*self.steps, (moved, bent)][-REMEMBERED:]
            self.at = self.at + moved
        else:
            self.first = self.first or float(np.linalg.norm(slope))
        self.value, self.slope, self.length = value, slope, 1.0
        self.way = -self._turned(slope)

    def _turned(self, slope: Floats) -> Floats:
        """The slope by the inverse curvature that the steps show."""
        turned, parts = slope.copy(), list[float]()
        for moved, bent in reversed(self.steps):
            parts.append(float(moved @ turned) / float(moved @ bent))
            turned -= parts[-1] * bent
        if self.steps:
            moved, bent = self.steps[-1]
            turned *= float(moved @ bent) / float(bent @ bent)
        for (moved, bent), part in zip(self.steps, reversed(parts), strict=True):
            turned += moved * (part - float(bent @ turned) / float(moved @ bent))
        return turned


@dataclass(frozen=True)
class Centres:
    """w_j and wbar as one vector, in the metric of the bound.

    Parameters
    ----------
    squares : sum of z z', weighted as losses are, of each cluster (k, d, d).
    lam : of w_j to wbar, by coefficient (d,): all 0, or none; infinite: w_j is wbar there.
    rho : of wbar, or where lam is 0 of w_j, to 0 (d,).
    classes : C.
    """

    squares: Floats
    lam: Floats
    rho: Floats
    classes: int

    @property
    def apart(self) -> bool:
        """True if clusters know nothing of each other."""
        return not self.lam.any()

    @cached_property
    def unit(self) -> Floats:
        """(S'S)^-1 = sum z z'/2 + rho, of wbar (1, d, d), or of each w_j (k, d, d)."""
        squares = self.squares if self.apart else self.squares.sum(0, keepdims=True)
        return inverse_root(BOUND * squares + np.diag(self.rho))

    @cached_property
    def own_unit(self) -> Floats:
        """The same of w_j - wbar (k, d, d); 0 where there is no deviation."""
        free = np.isfinite(self.lam)
        pull = np.where(free, self.lam, 1.0)
        squares = BOUND * self.squares * free * free[:, None]
        return inverse_root(squares + np.diag(pull)) * free[:, None]

    @property
    def clusters(self) -> int:
        """Numbers of clusters that deviate."""
        deviate = not self.apart and bool(np.isfinite(self.lam).any()) and len(self.squares) > 1
        return len(self.squares) if deviate else 0

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return (len(self.unit) + self.clusters) * self.squares.shape[1] * self.classes

    def split(self, x: Floats) -> tuple[Floats, Floats]:
        """wbar (1, d, C), or where clusters are apart w_j; and the deviations from it."""
        parts = x.reshape(-1, self.squares.shape[1], self.classes)
        top, own = parts[: len(self.unit)], parts[len(self.unit) :]
        return self.unit @ top, self.own_unit @ own if self.clusters else np.zeros((1, 1, 1))

    def models(self, x: Floats) -> tuple[Floats, Floats]:
        """w_j (k, d, C) and wbar (d, C)."""
        top, own = self.split(x)
        shape = len(self.squares), self.squares.shape[1], self.classes
        return np.broadcast_to(top + own, shape).copy(), top.mean(0)

    def vector(self, w: Floats, wbar: Floats) -> Floats:
        """The numbers of such models."""
        top = np.linalg.solve(self.unit, w if self.apart else wbar[None])
        if not self.clusters:
            return top.ravel()
        return np.concatenate([top, np.linalg.pinv(self.own_unit) @ (w - wbar)]).ravel()

    def whole(self, x: Floats, value: float, slopes: Floats) -> tuple[float, Floats]:
        """The objective and its slope, from the clusters' sums."""
        top, own = self.split(x)
        pull = np.where(np.isfinite(self.lam), self.lam, 0.0)[:, None] * own
        value += float((self.rho[:, None] * top**2).sum() + (pull * own).sum()) / 2
        whole = slopes if self.apart else slopes.sum(0, keepdims=True)
        found = [self.unit.mT @ (whole + self.rho[:, None] * top)]
        if self.clusters:
            found.append(self.own_unit.mT @ (slopes + pull))
        return value, np.concatenate(found).ravel()


def inverse_root(matrices: Floats) -> Floats:
    """S with S'AS = I, of positive A (k, d, d)."""
    size = np.trace(matrices, axis1=1, axis2=2)[:, None, None]
    shift = 16 * np.finfo(np.float64).eps * size * np.eye(matrices.shape[1])
    return np.linalg.inv(np.linalg.cholesky(matrices + shift)).mT
