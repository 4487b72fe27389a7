"""Small sum-of-norms problems with random data, and their solution by CVXPY."""

from __future__ import annotations

from collections.abc import Sequence

import cvxpy as cp
import numpy as np
import torch

from corsage.core.arrays import Floats
from corsage.core.losses import LOGISTIC, SQUARED_HINGE
from corsage.datasets.ellipses import draw
from corsage.solvers.convex_clustering.exact.sum_of_norms import Edges
from corsage.solvers.convex_clustering.expansions import Expansion, Probe, answer
from corsage.solvers.losses.convex import Losses, Quadratic, linear_losses, points
from corsage.solvers.losses.held_out import Fold, HeldOut

N, D, M = 9, 2, 6


def random(seed):
    return np.random.default_rng(seed)


def blobs(seed=0, groups=3, each=4, d=2, width=0.3):
    rng = random(seed)
    return np.repeat(3 * rng.normal(size=(groups, d)), each, 0) + width * rng.normal(
        size=(groups * each, d)
    )


def ellipses(seed=1, users=20):
    drawn = draw(seed, users=users)
    n, m = drawn.l.shape
    return linear_losses(
        torch.from_numpy(drawn.a.reshape(n * m, 2)),
        torch.from_numpy(drawn.l.ravel() > 0),
        [m] * n,
        loss=SQUARED_HINGE,
        scale="mean",
        ridge=1e-3,
    )


def quadratic(seed):
    rng = random(seed)
    root, b = rng.normal(size=(N, D, D)), rng.normal(size=(N, D))
    a = root @ root.transpose(0, 2, 1) + 0.1 * np.eye(D)
    losses = Quadratic(*(torch.from_numpy(part) for part in (a, b, np.zeros(N))))
    return losses, lambda x: sum(
        cp.quad_form(x[i], cp.psd_wrap(a[i])) / 2 - b[i] @ x[i] for i in range(N)
    )


def huber_points(seed):
    a = blobs(seed, 3, 3)
    a[0] += 9.0
    losses = points(torch.from_numpy(a), "huber", 0.7)
    return losses, lambda x: cp.sum(cp.huber(cp.norm(x - a, 2, axis=1), 0.7)) / 2


def squared_hinge(seed):
    u, losses = linear(seed, SQUARED_HINGE)
    return losses, lambda x: penalised(
        x, sum(cp.sum_squares(cp.pos(1 - u[i] @ x[i])) for i in users())
    )


def logistic(seed):
    u, losses = linear(seed, LOGISTIC)
    return losses, lambda x: penalised(x, sum(cp.sum(cp.logistic(-u[i] @ x[i])) for i in users()))


def users():
    return range(N)


def penalised(x, loss):
    return loss / M + 0.05 * cp.sum_squares(x[:, :D]) / 2


def linear(seed, loss):
    rng = random(seed)
    a, y = rng.normal(size=(N, M, D)), rng.integers(0, 2, (N, M))
    y[:, :2] = 0, 1
    signs = (2 * y - 1)[..., None]
    u = signs * np.concatenate([a, np.ones((N, M, 1))], -1)
    flat = torch.from_numpy(a.reshape(-1, D)), torch.from_numpy(y.ravel())
    return u, linear_losses(*flat, [M] * N, loss=loss, scale="mean", ridge=0.05)


def by_cvxpy(cost, d, edges, lam):
    x = cp.Variable((edges.n, d))
    apart = cp.norm(x[edges.i] - x[edges.j], 2, axis=1)
    problem = cp.Problem(cp.Minimize(cost(x) + lam * (edges.w @ apart)))
    problem.solve(solver=cp.CLARABEL, tol_gap_rel=1e-10, tol_gap_abs=1e-10, tol_feas=1e-10)
    return problem.value, x.value


def weighted(seed, n, share=0.6):
    rng, every = random(seed), Edges.all_pairs(n)
    keep = rng.random(len(every)) < share
    return Edges(every.i[keep], every.j[keep], rng.uniform(0.2, 2.0, keep.sum()), n)


KINDS = [quadratic, huber_points, squared_hinge, logistic]


class AtHand:
    """An oracle of users who are in this process; `exchanges` has the probes of each exchange."""

    def __init__(self, users: HeldOut) -> None:
        self.users = users
        self.exchanges: list[int] = []
        self._known: dict[Fold | None, Losses] = {}

    def __call__(self, probes: Sequence[Probe]) -> list[Expansion]:
        """The users' answers."""
        self.exchanges.append(len(probes))
        return [answer(self.on(each.fold), each, self.held(each)) for each in probes]

    def on(self, fold: Fold | None) -> Losses:
        """f_i without a fold, made once."""
        if fold not in self._known:
            self._known[fold] = self.users.losses_without(fold)
        return self._known[fold]

    def held(self, probe: Probe) -> Floats:
        """The loss of x_i on the samples that are left out."""
        if probe.fold is None:
            return np.full(len(probe.x), np.nan)
        return self.users.evaluate(probe.x, probe.fold)
