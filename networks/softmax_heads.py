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

PULLS: Floats = np.geomspace(1.0, 100.0, 4)
"""What gamma/heat may be multiplied by: the loss curves less than the squared one."""
CLOSE = 3e-3
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
        uphill = float((gradient * (x - before)).sum()) > 0
        after = 1.0 if uphill else (1 + (1 + 4 * t * t) ** 0.5) / 2
        v, t = x + (t - 1) / after * (x - before) * (not uphill), after
    return x


def solver(z: Tensor, gamma: float) -> Callable[[Tensor], Tensor]:
    """g -> (Z'Z/2 + gamma I)^-1 g, from the smaller system; its factor is found in 64 bits."""
    wide = z.double()
    if len(z) < z.shape[1]:
        low = factor(wide @ wide.t(), 2 * gamma).to(z)
        return lambda g: (g - z.t() @ torch.cholesky_solve(z @ g, low)) / gamma
    low = factor(wide.t() @ wide, 2 * gamma).to(z)
    return lambda g: 2 * torch.cholesky_solve(g, low)


def heads(of: Designs, centres: Floats, gamma: float) -> Floats:
    """Theta of each user (n, d, C) around its centre."""
    return along(of, centres[:, None], np.array([gamma]))[:, 0]


def along(of: Designs, centres: Floats, gammas: Floats) -> Floats:
    """Theta of each user (n, K, d, C) for K strengths, around one centre or one for each.

    From the strongest on, each begins where the one before came to.
    """
    users = zip(of.users(), centres, strict=True)
    return np.stack([chain(z, y, w, gammas).cpu().numpy() for (z, _, y), w in users])


def chain(z: Tensor, labels: Tensor, centres: Floats, gammas: Floats) -> Tensor:
    """The same for one user."""
    z, w = z.float(), torch.from_numpy(centres).to(z.device).float()
    w = w.expand(len(gammas), -1, -1)
    theta, last = w.clone(), int(np.argmax(gammas))
    for k in np.argsort(-gammas).tolist():
        theta[k] = fit(z, labels, w[k], float(gammas[k]), theta[last] + w[k] - w[last])
        last = k
    return theta


def held_out(of: Designs, centres: Floats, gammas: Floats) -> Floats:
    """Each user's cross-entropy on every fifth record, found from the others (n, K).

    Users with too few records have no say.
    """
    found = np.zeros((len(of.sizes), len(gammas)))
    for user, (z, _, labels) in enumerate(of.users()):
        out = torch.arange(len(z), device=z.device) % FOLDS == FOLDS - 1
        if bool(out.any()):
            heads = chain(z[~out], labels[~out], centres[user], gammas)
            scores = z[out].float() @ heads
            found[user] = [float(F.cross_entropy(one, labels[out])) for one in scores]
    return found
