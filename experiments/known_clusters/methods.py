"""The methods that the known-clusters experiments compare, on one draw of model (5.1).

Lyu et al. 2022, section 6.1; losses are 1/2 |X_i theta - y_i|^2, sums over a user's samples.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.datasets.hierarchical import Hierarchical
from corsage.experiments.known_clusters import pooling
from corsage.solvers.known_clusters.coins.coalescing import global_map
from corsage.solvers.known_clusters.coins.flips import Coins, stretches
from corsage.solvers.known_clusters.coins.settings import Parameters, rates
from corsage.solvers.known_clusters.folds import SINGLE_CENTRE_GRID, Folds
from corsage.solvers.known_clusters.hierarchy import Hierarchy, alpha_of
from corsage.solvers.known_clusters.mixed_model import ClusterSums, by_cluster, centres, personal
from corsage.solvers.known_clusters.spectra import Spectra
from corsage.solvers.known_clusters.variances.reml import fit, level_sums

ITERATIONS, STEP, P0 = 50_000, 1e-4, 0.1
"""T, eta and p of section 6.1."""
STRENGTHS = np.geomspace(0.01, 100, 9).tolist()
"""Values of gamma, and of lambda, that the grid search tries."""


@dataclass(frozen=True)
class Data:
    """One draw, and what it is drawn from."""

    seed: int
    drawn: Hierarchical
    noise: float
    cluster_variance: float

    @property
    def cluster(self) -> Ints:
        """Each user's cluster (n,)."""
        return self.drawn.cluster

    @property
    def k(self) -> int:
        """How many clusters there are."""
        return len(self.drawn.centres)

    @cached_property
    def held(self) -> Folds:
        """The sums of five folds of every user's records."""
        own = self.drawn
        return pooling.fold_sums(own.x, own.y, own.user, len(own.cluster), self.seed)

    @cached_property
    def a(self) -> Floats:
        """A_i = X_i'X_i (n, d, d)."""
        return np.asarray(self.held.a.sum(0))

    @cached_property
    def b(self) -> Floats:
        """b_i = X_i'y_i (n, d)."""
        return np.asarray(self.held.b.sum(0))

    def errors(self, theta: Floats) -> Floats:
        """|theta_i - theta_i*| of every user (n,), not squared."""
        return np.asarray(np.linalg.norm(theta - self.drawn.theta, axis=-1))


def tied(a: Floats, b: Floats, cluster: Ints, gamma: Floats | float, lam: float) -> Floats:
    """The exact minimiser of (2.3)."""
    sums = ClusterSums.of(a, b, gamma, cluster, int(cluster.max()) + 1)
    return personal(a, b, gamma, centres(sums.P, sums.q, lam).w[cluster])


def local(data: Data) -> Floats:
    """Each user alone."""
    return pooling.local(data.a, data.b)


def single(data: Data) -> Floats:
    """One model for all."""
    return np.broadcast_to(pooling.single(data.a, data.b), data.b.shape)


def single_cluster(data: Data) -> Floats:
    """Models tied to one centre, lambda^sc by cross-validation."""
    grid = SINGLE_CENTRE_GRID.tolist()
    chosen = pooling.cross_validated(data.held, grid, pooling.single_cluster)
    return pooling.single_cluster(data.a, data.b, chosen)


def exact(data: Data) -> Floats:
    """lambda = gamma = 1."""
    return tied(data.a, data.b, data.cluster, 1.0, 1.0)


def oracle(data: Data) -> Floats:
    """lambda and gamma_j as the variances that the data are drawn with want them."""
    gamma = (data.noise / data.drawn.user_variances)[data.cluster]
    return tied(data.a, data.b, data.cluster, gamma, data.noise / data.cluster_variance)


def reml(data: Data) -> Floats:
    """lambda and gamma_j from one round of sums."""
    own = data.drawn
    yy, counts = data.held.yy.sum(0), np.bincount(own.user, minlength=len(own.cluster))
    found = fit(level_sums(data.a, data.b, yy, counts, data.cluster, data.k))
    w = found.centres.w[data.cluster]
    return personal(data.a, data.b, found.gamma_unit[data.cluster], w)


def searched(data: Data) -> Floats:
    """lambda and one gamma by cross-validation over 9 x 9 values."""

    def solve(a: Floats, b: Floats, pair: tuple[float, float]) -> Floats:
        return tied(a, b, data.cluster, *pair)

    pairs = list(itertools.product(STRENGTHS, STRENGTHS))
    return solve(data.a, data.b, pooling.cross_validated(data.held, pairs, solve))


def one_coin(data: Data, iterations: int = ITERATIONS) -> Floats:
    """Async-L2GD from 0 with the paper's single coin: p_j = 0 and tau_j = 1, lambda = gamma = 1.

    A run of local steps on a quadratic is a power of 1 - step W in its eigenvectors.
    """
    n, k = len(data.b), data.k
    gamma, none = np.ones(n), np.zeros(k)
    totals = by_cluster(gamma, data.cluster, k)
    tree = Hierarchy(data.cluster, gamma, alpha_of(1.0, totals))
    steps = rates(tree, Parameters(STEP, P0, none, np.ones(k)))
    shrink, pull, _, rate = steps.of_clusters(tree)
    spectra, theta = Spectra.of(data.a, data.b), np.zeros_like(data.b)
    still = spectra.values == 0
    best = np.where(still, 0.0, spectra.slopes / np.where(still, 1.0, spectra.values))
    decay = 1 - rate[data.cluster, None] * spectra.values
    coins = Coins(data.seed, P0, tuple(none), tuple(map(str, range(k))))
    for part in stretches(coins, iterations):
        factor, shift, _ = global_map(tree.centres(theta), tree.weights, shrink, pull, part.globals)
        theta = factor[data.cluster, None] * theta + shift[data.cluster]
        count = part.walks[0][0][1] if part.walks[0] else 0  # the same in all clusters
        turned = (theta[:, None] @ spectra.vectors)[:, 0]
        turned = best + decay**count * (turned - best)
        theta = (spectra.vectors @ turned[..., None])[..., 0]
    return theta


Method = Callable[[Data], Floats]
"""Personal models (n, d)."""
