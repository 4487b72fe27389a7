"""Linear heads over a frozen body for the multinomial loss, each user's own problem solved.

For a user with features Z (m, d), one label a row, and a centre W (d, C):

    Theta = argmin  sum_r -log softmax(Z Theta)_{r, y_r} + gamma/2 |Theta - W|^2.

The loss curves by at most Z'Z/2 in each class (Böhning 1992): its Hessian is below
1/2 (I - 11'/C) (x) Z'Z. So each step minimises a quadratic above it, whose factor all steps and all
classes share, and steps are accelerated (Nesterov 1983; begun anew where they lead uphill, as in
O'Donoghue, Candes 2015).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from corsage.core.arrays import Floats
from corsage.networks.exact_heads import Designs, factor

PULLS: Floats = np.geomspace(0.1, 100.0, 4)
"""What the squared loss's gamma, over the heat, may be multiplied by."""
CLOSE = 1e-3
"""A step that lowers the loss of a record by less than the square of this is the last."""
MOST_STEPS = 200
FOLDS = 5
"""One record of so many is held out where pulls are compared."""


def fit(z: Tensor, labels: Tensor, w: Tensor, gamma: float, start: Tensor) -> Tensor:
    """Theta of one user."""
    step_of = solver(z, gamma)
    y = F.one_hot(labels, w.shape[1]).to(z)
    x, v, t = start, start, 1.0
    for _ in range(MOST_STEPS):
        gradient = z.t() @ (torch.softmax(z @ v, 1) - y) + gamma * (v - w)
        step = step_of(gradient)
        x, before = v - step, x
        if float((gradient * step).sum()) <= CLOSE**2 * len(z):
            return x
        if float((gradient * (x - before)).sum()) > 0:
            v, t = x, 1.0
            continue
        after = (1 + (1 + 4 * t * t) ** 0.5) / 2
        v, t = x + (t - 1) / after * (x - before), after
    return x


def solver(z: Tensor, gamma: float) -> Callable[[Tensor], Tensor]:
    """g -> (Z'Z/2 + gamma I)^-1 g, from the smaller system."""
    if len(z) < z.shape[1]:
        low = factor(z @ z.t(), 2 * gamma)
        return lambda g: (g - z.t() @ torch.cholesky_solve(z @ g, low)) / gamma
    low = factor(z.t() @ z, 2 * gamma)
    return lambda g: 2 * torch.cholesky_solve(g, low)


def heads(of: Designs, centres: Floats, gamma: float) -> Floats:
    """Theta of each user (n, d, C) around its centre."""
    found = []
    for (z, _, labels), centre in zip(of.users(), centres, strict=True):
        w = torch.from_numpy(centre).to(z)
        found.append(fit(z, labels, w, gamma, w))
    return torch.stack(found).cpu().numpy()


def held_out(of: Designs, centres: Floats, gammas: Floats) -> Floats:
    """Each user's cross-entropy on every fifth record, found from the others (n, gammas).

    From the strongest pull on, each begins where the one before came to. Users with too few
    records have no say.
    """
    found = []
    for (z, _, labels), centre in zip(of.users(), centres, strict=True):
        w = torch.from_numpy(centre).to(z)
        out = torch.arange(len(z), device=z.device) % FOLDS == FOLDS - 1
        losses, theta = z.new_zeros(len(gammas)), w
        if bool(out.any()):
            for k in np.argsort(-gammas).tolist():
                theta = fit(z[~out], labels[~out], w, float(gammas[k]), theta)
                losses[k] = F.cross_entropy(z[out] @ theta, labels[out])
        found.append(losses)
    return torch.stack(found).cpu().numpy()
