"""Linear heads over a frozen body for the multinomial loss, each user's own problem solved.

For a user with features Z (m, d), one label a row, and a centre W (C, d), one row a class:

    Theta = argmin F,   F(Theta) = sum_r -log softmax(Theta z_r)_{y_r} + gamma/2 |Theta - W|^2.

F is strongly convex, so a gradient g leaves at most |g|^2 / (2 gamma) of F: that is the certificate
at which a fit ends. Conjugate gradients (Polak, Ribiere 1969, begun anew where they lead uphill)
take one step of Newton along each direction. Their metric is (CURVED Z'Z + gamma I)^-1, which all
classes share. The loss curves by at most Z'Z/2 in each class (Böhning 1992), which is what bounds a
step that goes too far. Classes are rows here: what is summed over them is next to each other then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from corsage.core.arrays import Floats
from corsage.networks.exact.exact_heads import Designs

PULLS: Floats = np.geomspace(1.0, 100.0, 4)
"""Factors of gamma/heat: the loss curves less than the squared one."""
CLOSE_GAP = 3e-4
"""The loss of a record, on average, that a head may leave."""
CURVED = 0.02
"""The share of Z'Z by which the loss curves in most classes; the bound takes twice the steps."""
BOUND = 0.5
"""The largest share of Z'Z."""
MOST_STEPS = 500
HEAD_FOLDS = 5
"""One record of so many is held out where pulls are compared."""
OVERSHOT = 0.5
"""A step may leave so much of the slope, with its sign turned."""
LOSS_ROUNDING = 1e-6
"""The error of an eigenvalue in single precision, as a share of the trace."""


@dataclass(frozen=True)
class Softmax:
    """F of one user: Z (m, d), labels as rows of classes Y (C, m), the centre and gamma."""

    z: Tensor
    y: Tensor
    w: Tensor
    gamma: float

    def gradient(self, x: Tensor, told: Tensor) -> Tensor:
        """The gradient at Theta = x (C, d), where the classes' probabilities are `told` (C, m)."""
        return (told - self.y) @ self.z + self.gamma * (x - self.w)

    def certified(self, gradient: Tensor) -> bool:
        """Tell whether no record's loss can be lowered by more than CLOSE, on average."""
        return self.left(gradient) <= CLOSE_GAP

    def left(self, gradient: Tensor) -> float:
        """By how much a record's loss can be lowered at most, on average."""
        return inner(gradient, gradient) / (2 * self.gamma * len(self.z))

    def step(self, x: Tensor, scores: Tensor, told: Tensor, along: Tensor) -> tuple[Tensor, ...]:
        """Theta, its scores and probabilities after a step along a direction.

        One step of Newton on F along it; the minimum of the quadratic above F if that goes too far.
        """
        ahead = along @ self.z.t()
        stiff = self.gamma * inner(along, along)
        pull = self.gamma * inner(along, x - self.w)
        slope = inner(told - self.y, ahead) + pull
        moved = told * ahead
        both = moved.sum(0)
        length = -slope / (inner(moved, ahead) - inner(both, both) + stiff)
        after = torch.softmax(scores + length * ahead, 0)
        if inner(after - self.y, ahead) + pull + length * stiff > -OVERSHOT * slope:
            length = -slope / (BOUND * inner(ahead, ahead) + stiff)
            after = torch.softmax(scores + length * ahead, 0)
        return x + length * along, scores + length * ahead, after


def inner(a: Tensor, b: Tensor) -> float:
    """The sum of a's entries times b's."""
    return float(torch.dot(a.reshape(-1), b.reshape(-1)))


def fit(problem: Softmax, metric: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Theta (C, d) of one user, certified if MOST_STEPS suffice (`left` tells of one that is not).

    `metric` turns a gradient into a direction.
    """
    x, scores = start, start @ problem.z.t()
    told = torch.softmax(scores, 0)
    g = problem.gradient(x, told)
    steep = metric(g)
    along, size = -steep, inner(g, steep)
    for _ in range(MOST_STEPS):
        if problem.certified(g):
            break
        x, scores, told = problem.step(x, scores, told, along)
        before, g = g, problem.gradient(x, told)
        steep = metric(g)
        turn, size = inner(g - before, steep) / size, inner(g, steep)
        along = -steep + max(turn, 0.0) * along
        if inner(along, g) >= 0:
            along = -steep
    return x


def metric(z: Tensor, gamma: float) -> Callable[[Tensor], Tensor]:
    """g (C, d) -> g (CURVED Z'Z + gamma I)^-1, from the smaller system."""
    wide = len(z) < z.shape[1]
    square = z @ z.t() if wide else z.t() @ z
    square.diagonal().add_(gamma / CURVED + LOSS_ROUNDING * float(square.trace()))
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(square))
    if wide:
        return lambda g: (g - g @ z.t() @ inverse @ z) / gamma
    return lambda g: (g @ inverse) / CURVED


def heads(of: Designs, centres: Floats, gamma: float) -> Floats:
    """Theta of each user (n, d, C) around its centre (n, d, C)."""
    found = [
        chain(z, labels, w, np.array([gamma]))[0].t()
        for (z, _, labels), w in zip(of.users(), centres, strict=True)
    ]
    return torch.stack(found).cpu().numpy()


def left(of: Designs, centres: Floats, gamma: float, thetas: Floats) -> Floats:
    """The most that each user's Theta (n, d, C) leaves of the loss of a record, on average (n,).

    In double precision, of the very heads that a user sends: a fit that ran out of steps, or of
    digits, shows.
    """
    found = []
    for (z, y, _), centre, theta in zip(of.exact(), centres, thetas, strict=True):
        x, w = (torch.from_numpy(np.asarray(o, np.float64)).to(z).t() for o in (theta, centre))
        problem = Softmax(z, y.t(), w, gamma)
        found.append(problem.left(problem.gradient(x, torch.softmax(x @ z.t(), 0))))
    return np.array(found)


def chain(z: Tensor, labels: Tensor, centre: Floats, gammas: Floats) -> Tensor:
    """Theta (K, C, d) of one user for K strengths.

    From the strongest on, each begins where the one before came to.
    """
    z = z.float()
    w = torch.from_numpy(centre).to(z).t().contiguous()
    y = F.one_hot(labels, len(w)).to(z).t().contiguous()
    theta, found = w, w.new_empty(len(gammas), *w.shape)
    for k in np.argsort(-gammas).tolist():
        gamma = float(gammas[k])
        found[k] = theta = fit(Softmax(z, y, w, gamma), metric(z, gamma), theta)
    return found


def least(z: Tensor, y: Tensor, labels: Tensor, w: Tensor, gamma: float) -> float:
    """The least of F around a centre W (d, C): what exact_heads.expected compares."""
    theta = chain(z, labels, w.cpu().numpy(), np.array([gamma]))[0].t().double()
    loss = F.cross_entropy(z.double() @ theta, labels, reduction="sum")
    return float(loss + gamma / 2 * (theta - w).square().sum())


def held_out(of: Designs, centres: Floats, gammas: Floats) -> Floats:
    """Each user's cross-entropy on every fifth record, found from the others (n, K).

    Users with too few records have no say.
    """
    found = np.zeros((len(of.sizes), len(gammas)))
    for user, (z, _, labels) in enumerate(of.users()):
        out = torch.arange(len(z), device=z.device) % HEAD_FOLDS == HEAD_FOLDS - 1
        if bool(out.any()):
            own = chain(z[~out], labels[~out], centres[user], gammas)
            scores = z[out].float() @ own.transpose(1, 2)
            found[user] = [float(F.cross_entropy(one, labels[out])) for one in scores]
    return found
