"""Small convex problems with known clusters, and how far each method is from the minimiser.

The objective is (2.1) of Lyu et al. 2022, f_i the mean loss of a linear model on m samples, plus a
ridge. Each method says after how many iterations, and after how many round trips, it is how far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from corsage.core.arrays import Array, Ints
from corsage.core.losses import SQUARED_LOSS, ScalarLoss
from corsage.core.seeding import uniforms, user_keys
from corsage.experiments.known_clusters import async_al2sgd, async_l2gd
from corsage.experiments.known_clusters.objective import lambda_of
from corsage.solvers.known_clusters.coins import katyusha
from corsage.solvers.known_clusters.coins.flips import Coins
from corsage.solvers.known_clusters.coins.settings import (
    Parameters,
    largest_step,
    probabilities,
    sigma2,
    tau_of,
    theorem_bound,
)
from corsage.solvers.known_clusters.hierarchy import Hierarchy, alpha_of
from corsage.solvers.known_clusters.mixed_model import ClusterSums, centres, personal
from corsage.solvers.known_clusters.newton_rounds import damped, newton_message

MOST_ROUNDS = 50
STILL = 1e-15
"""A Newton step of so little of the models is none."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Users with m samples each: features a (n, m, d), labels y (n, m).

    Parameters
    ----------
    title : of a panel.
    a, y : the samples; an intercept is a feature.
    loss : phi; f_i is its mean, plus ridge/2 |theta|^2.
    ridge : c.
    hierarchy : clusters and strengths.
    """

    title: str
    a: Array
    y: NDArray[np.float64]
    loss: ScalarLoss
    ridge: float
    hierarchy: Hierarchy

    @classmethod
    def of(
        cls,
        title: str,
        a: Array,
        y: Array,
        loss: ScalarLoss,
        ridge: float,
        cluster: Ints,
        gamma: float,
        lam: float,
    ) -> Problem:
        """A problem with one gamma and one lambda for all."""
        totals = gamma * np.bincount(cluster)
        ties = np.full(len(cluster), gamma)
        return cls(title, a, y, loss, ridge, Hierarchy(cluster, ties, alpha_of(lam, totals)))

    @property
    def exact(self) -> bool:
        """Whether the losses are quadratic."""
        return self.loss.name == SQUARED_LOSS.name

    def _scores(self, theta: Array, users: Ints) -> tuple[torch.Tensor, torch.Tensor]:
        u = (self.a[users] @ theta[..., None])[..., 0]
        return torch.from_numpy(u), torch.from_numpy(self.y[users])

    def gradient(self, theta: Array, users: Ints) -> Array:
        """nabla f_i(theta_i) of some users."""
        slope = self.loss.slope(*self._scores(theta, users)).numpy() / self.y.shape[1]
        return np.asarray((slope[:, None] @ self.a[users])[:, 0] + self.ridge * theta)

    def hessian(self, theta: Array) -> Array:
        """The Hessians (n, d, d) of all users."""
        curvature = self.loss.curvature(*self._scores(theta, self.users)).numpy()
        inner = self.a.mT @ ((curvature / self.y.shape[1])[..., None] * self.a)
        return np.asarray(inner + self.ridge * np.eye(self.a.shape[2]))

    def sampler(self, seed: int) -> katyusha.SampleGradient:
        """Gradients of one sample a user, that of iteration t."""
        keys = user_keys(seed, "samples", [str(i) for i in self.users])
        m = self.y.shape[1]

        def gradient(t: int, theta: Array, users: Ints) -> Array:
            chosen = (uniforms(keys, t) * m).astype(np.int64)[users]
            a = self.a[users, chosen]
            u, y = torch.from_numpy((a * theta).sum(1)), torch.from_numpy(self.y[users, chosen])
            slope = self.loss.slope(u, y).numpy()
            return np.asarray(slope[:, None] * a + self.ridge * theta)

        return gradient

    @property
    def users(self) -> Ints:
        """All users."""
        return np.arange(len(self.a))

    @cached_property
    def smoothness(self) -> float:
        """L of the f_i."""
        grams = self.a.mT @ self.a / self.a.shape[1]
        return float(self.loss.bound * np.linalg.eigvalsh(grams)[:, -1].max() + self.ridge)

    @cached_property
    def sample_smoothness(self) -> float:
        """L of the samples' losses."""
        return float(self.loss.bound * np.square(self.a).sum(2).max() + self.ridge)

    @cached_property
    def convexity(self) -> float:
        """mu of the f_i."""
        if not self.exact:
            return self.ridge
        return float(np.linalg.eigvalsh(self.hessian(np.zeros(self.start.shape)))[:, 0].min())

    @cached_property
    def start(self) -> Array:
        """theta^0 = 0."""
        return np.zeros((len(self.a), self.a.shape[2]))

    @cached_property
    def newton(self) -> list[Array]:
        """The mixed model's theta after 0, 1, ... rounds, until they stand still."""
        tree, path = self.hierarchy, [self.start]
        lam = lambda_of(tree.alpha, tree.totals)
        for _ in range(MOST_ROUNDS):
            theta = path[-1]
            a, b = newton_message(self.hessian(theta), self.gradient(theta, self.users), theta)
            sums = ClusterSums.of(a, b, tree.gamma, tree.cluster, tree.k)
            w = centres(sums.P, sums.q, lam).w[tree.cluster]
            step = personal(a, b, tree.gamma, w) - theta
            if np.square(step).sum() <= STILL**2 * np.square(theta).sum():
                break
            if not self.exact:
                step = damped(step, np.abs((self.a @ step[..., None])[..., 0]).max(1))
            path.append(theta + step)
        return path

    @property
    def best(self) -> Array:
        """The minimiser of (2.1)."""
        return self.newton[-1]

    def distance(self, theta: Array) -> float:
        """|theta - best|^2 as a share of that at the start."""
        return float(np.square(theta - self.best).sum() / np.square(self.start - self.best).sum())


@dataclass
class Path:
    """A method's way: how far it is after t iterations, and how many round trips these took.

    `bound` is Theorem 3.5's for the mean of the distance, where there is one.
    """

    distance: list[float] = field(default_factory=list)
    trips: Array = field(default_factory=lambda: np.zeros(0))
    coins: Coins | None = None
    bound: Callable[[int], float] | None = None

    def first(self, level: float) -> int | None:
        """The first t at which it is that near, and stays so; None if it never does."""
        far = np.flatnonzero(~(np.array(self.distance) <= level))
        t = int(far[-1]) + 1 if len(far) else 0
        return t if t < len(self.distance) else None


def mixed_model(problem: Problem) -> Path:
    """Newton's rounds; each is one round trip."""
    found = [problem.distance(theta) for theta in problem.newton]
    return Path(found, np.arange(len(found), dtype=np.float64))


def async_l2gd_path(problem: Problem, seed: int, iterations: int, p0: float | None) -> Path:
    """Algorithm 1 with the longest safe step; p_0 None: its probabilities are Corollary 3.6's.

    A number is the probability of one coin for both pulls: p_j = 0, as in section 6.
    """
    tree, smooth = problem.hierarchy, problem.smoothness
    p0, p = probabilities(tree, smooth) if p0 is None else (p0, np.zeros(tree.k))
    eta = largest_step(tree, smooth, p0, p)
    coins, path = thrown(tree, seed, p0, p), Path([1.0])
    async_l2gd.run_naive(
        problem.start, problem.gradient, tree, Parameters(eta, p0, p, tau_of(p0, p)),
        coins, iterations, lambda t, theta: path.distance.append(problem.distance(theta)),
    )  # fmt: skip
    spread = sigma2(tree, p0, p, problem.best, problem.gradient(problem.best, problem.users))
    start = float(np.square(problem.start - problem.best).sum())
    path.coins, path.trips = coins, trips(coins, iterations)
    path.bound = lambda t: theorem_bound(t, eta, problem.convexity, start, spread) / start
    return path


def async_al2sgd_path(problem: Problem, seed: int, iterations: int, sample: bool) -> Path:
    """Algorithm 2 with the settings of Theorem 4.3, on all samples or on one a step."""
    tree = problem.hierarchy
    smooth = problem.sample_smoothness if sample else problem.smoothness
    p0, p = probabilities(tree, smooth)
    settings = katyusha.parameters(tree, smooth, problem.convexity, p0, p)
    coins, path = thrown(tree, seed, p0, p), Path([1.0])
    async_al2sgd.run_naive(
        problem.start, problem.gradient, problem.sampler(seed) if sample else None, tree, settings,
        coins, iterations, lambda t, rows: path.distance.append(problem.distance(rows.y)),
    )  # fmt: skip
    path.coins = coins
    path.trips = trips(coins, iterations, coins.refresh_coin(settings.rho).at(0, iterations))
    return path


def thrown(tree: Hierarchy, seed: int, p0: float, p: Array) -> Coins:
    """The coins of a run."""
    return Coins(seed, p0, tuple(p.tolist()), tuple(map(str, range(tree.k))))


def trips(coins: Coins, iterations: int, refresh: NDArray[np.bool_] | None = None) -> Array:
    """Round trips of a cluster's users after 0, ..., T iterations, the mean over clusters.

    Users are heard at the end of a run of local steps, and at a refresh.
    """
    xi_0 = coins.network_at(0, iterations)
    local = ~(xi_0 | coins.clusters_at(0, iterations))
    ends = np.zeros(local.shape, bool)
    ends[:, :-1] = local[:, :-1] & ~local[:, 1:]
    heard = ends if refresh is None else ends | refresh
    return np.concatenate([[0.0], np.cumsum(heard.mean(0))])
