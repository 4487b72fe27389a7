"""Strengths gamma and lambda by grid search: the exact mixed model on all but held-out records.

As in section 6.2 of Lyu et al. 2022: the pair with the least cross-entropy, the mean over users.
What is held out is a fifth of each user's training records, drawn by chance alone; none of its test
records is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from corsage.core.arrays import Floats, Ints
from corsage.core.losses import LOGISTIC
from corsage.core.seeding import generator
from corsage.datasets.user_data import FederatedData
from corsage.solvers.known_clusters.mixed_model import ClusterSums, centres, personal
from corsage.solvers.known_clusters.newton_rounds import change, damped, newton_message, travelled
from corsage.solvers.losses.linear_losses import LinearLosses

Scale = Literal["sum", "mean"]
SHARE = 0.2
"""Of a user's training records, held out; at least one, and not all."""
ROUNDS, STILL = 30, 1e-5


@dataclass(frozen=True, eq=False)
class Split:
    """The training records of users in known clusters, user by user.

    Parameters
    ----------
    x, y : records (N, p) and their classes (N,).
    sizes : records of each user (n,), at least two.
    cluster : each user's cluster (n,).
    seed : of what is held out.
    """

    x: Floats
    y: Ints
    sizes: Ints
    cluster: Ints
    seed: int

    @classmethod
    def of(cls, data: FederatedData, seed: int) -> Split:
        """The training part of a simulation's users."""
        rows = np.concatenate([np.arange(first, last) for first, last, _ in data.bounds])
        names = np.array([data.clusters[user] for user in data.users])
        _, cluster = np.unique(names, return_inverse=True)
        return cls(data.x[rows].astype(np.float64), data.y[rows], data.train_sizes, cluster, seed)

    @cached_property
    def held(self) -> NDArray[np.bool_]:
        """Which records are held out (N,)."""
        rng = generator(self.seed, "grid search")
        owner = np.repeat(np.arange(len(self.sizes)), self.sizes)
        order = np.lexsort((rng.random(len(owner)), owner))
        first = np.cumsum(self.sizes) - self.sizes
        many = np.clip(np.rint(SHARE * self.sizes), 1, self.sizes - 1)
        held = np.zeros(len(owner), bool)
        held[order] = np.arange(len(owner)) - first[owner] < many[owner]
        return held

    def losses(self, rows: NDArray[np.bool_], scale: Scale) -> LinearLosses:
        """The users' losses on some of the records."""
        first = np.cumsum(self.sizes) - self.sizes
        sizes = np.add.reduceat(rows.astype(np.int64), first)
        x, y = torch.from_numpy(self.x[rows]), torch.from_numpy(self.y[rows])
        return LinearLosses(x, y, sizes, loss=LOGISTIC, scale=scale)


@dataclass(frozen=True)
class Search:
    """What was tried, and its cross-entropy: rows are gamma, columns lambda."""

    gammas: tuple[float, ...]
    lambdas: tuple[float, ...]
    loss: Floats

    @property
    def best(self) -> tuple[float, float]:
        """gamma and lambda with the least cross-entropy."""
        i, j = np.unravel_index(int(self.loss.argmin()), self.loss.shape)
        return self.gammas[i], self.lambdas[j]

    @property
    def at_end(self) -> bool:
        """Whether gamma is at an end of what was tried."""
        return self.best[0] in (self.gammas[0], self.gammas[-1])


def search(split: Split, values: tuple[float, ...], scale: Scale) -> Search:
    """Every pair of values, each fit from the one before."""
    train, test = split.losses(~split.held, scale), split.losses(split.held, "mean")
    theta = np.zeros((train.n, train.d))
    loss = np.empty((len(values), len(values)))
    for i, gamma in enumerate(values[::-1]):
        for j, lam in enumerate(values):
            theta = fitted(train, split.cluster, gamma, lam, theta)
            loss[-1 - i, j] = float(test.value(torch.from_numpy(theta)).mean())
    return Search(values, values, loss)


def fitted(losses: LinearLosses, cluster: Ints, gamma: float, lam: float, start: Floats) -> Floats:
    """The exact mixed model theta (n, d) by Newton's rounds."""
    theta, k = start, int(cluster.max()) + 1
    edges = np.cumsum(losses.counts) - losses.counts
    for _ in range(ROUNDS):
        at = torch.from_numpy(theta)
        a, b = newton_message(losses.hessian(at).numpy(), losses.gradient(at).numpy(), theta)
        sums = ClusterSums.of(a, b, gamma, cluster, k)
        step = personal(a, b, gamma, centres(sums.P, sums.q, lam).w[cluster]) - theta
        reach = np.maximum.reduceat(losses.predict(torch.from_numpy(step)).abs().numpy(), edges)
        theta = theta + damped(step, reach)
        if change(travelled(step, theta)) < STILL:
            break
    return theta
