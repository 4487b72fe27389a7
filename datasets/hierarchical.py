"""The hierarchical linear model of Lyu et al. 2022, (5.1): users in clusters, labels are numbers.

A cluster's centre is drawn around 0, a user's parameter around its cluster's centre, and labels are
y = <theta_i*, x> + noise with standard normal x. Variances are the same in every coordinate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from corsage.core.arrays import Ints
from corsage.core.errors import ConfigError
from corsage.core.keys import key
from corsage.core.seeding import generator
from corsage.datasets.data_set import DataSet
from corsage.datasets.sample_table import Numbers, Table
from corsage.datasets.shared_keys import ClusterKeys, LabelKeys

LEAST_TEST = 20  # test samples a user


@dataclass(frozen=True)
class HierarchicalKeys(ClusterKeys, LabelKeys):
    """Keys of the hierarchical model."""

    num_features: int = key(20, "width of the input (d)", low=1)
    noise: float = key(1.0, "variance of the noise (sigma^2)", low=0.0)
    user_variance: tuple[str, ...] = key(
        ("1",),
        "variance of users in their cluster (sigma_j^2), or low,high: log-uniform between them, "
        "one a cluster",
    )
    cluster_variance: float = key(1.0, "variance of the clusters' centres", low=0.0)


@dataclass(frozen=True, eq=False)
class Hierarchical:
    """The samples, user by user in float64, and what they were drawn from.

    Parameters
    ----------
    x, y : training samples (n m, d) and (n m,), and each one's `user` (n m,).
    cluster : each user's cluster (n,).
    theta : the users' parameters theta_i* (n, d).
    centres : the clusters' centres (k, d).
    user_variances : sigma_j^2 of each cluster (k,).
    """

    x: Numbers
    y: Numbers
    user: Ints
    cluster: Ints
    theta: Numbers
    centres: Numbers
    user_variances: Numbers


def draw(
    seed: int = 1,
    *,
    clusters: int = 20,
    users: int = 20,
    samples: int = 10,
    features: int = 20,
    noise: float = 1.0,
    user_variance: tuple[float, float] = (1.0, 1.0),
    cluster_variance: float = 1.0,
) -> Hierarchical:
    """Draw parameters and samples; the defaults are those of the paper's section 6.1.

    Users of a cluster have the variance sigma_j^2, log-uniform between the two of `user_variance`.
    A seed's parameters are the same for every number of samples.
    """
    n = clusters * users
    cluster = np.repeat(np.arange(clusters), users)
    variances = log_uniform(user_variance, clusters, generator(seed, "hierarchical", "variances"))
    centres = np.sqrt(cluster_variance) * generator(seed, "hierarchical", "centres").normal(
        size=(clusters, features)
    )
    own = generator(seed, "hierarchical", "users").normal(size=(n, features))
    theta = centres[cluster] + np.sqrt(variances)[cluster, None] * own
    x, y = responses(theta, samples, noise, generator(seed, "hierarchical", "train"))
    return Hierarchical(x, y, np.repeat(np.arange(n), samples), cluster, theta, centres, variances)


def log_uniform(limits: tuple[float, float], many: int, rng: np.random.Generator) -> Numbers:
    """Numbers between the limits, evenly on the scale of the logarithm."""
    low, high = limits
    if low == high:
        return np.full(many, low)
    return np.exp(rng.uniform(np.log(low), np.log(high), many))


def responses(
    theta: Numbers, many: int, noise: float, rng: np.random.Generator
) -> tuple[Numbers, Numbers]:
    """So many samples of each user: x (n m, d) and y (n m,)."""
    n, d = theta.shape
    x = rng.normal(size=(n, many, d))
    y = np.einsum("nmd,nd->nm", x, theta) + np.sqrt(noise) * rng.normal(size=(n, many))
    return x.reshape(n * many, d), y.ravel()


def variance_limits(keys: HierarchicalKeys) -> tuple[float, float]:
    """The two numbers of `user-variance`; one counts twice."""
    text = ",".join(keys.user_variance)
    try:
        numbers = [float(word) for word in keys.user_variance]
    except ValueError:
        numbers = []
    low, high = (numbers[0], numbers[-1]) if len(numbers) in (1, 2) else (1.0, -1.0)
    if not 0 <= low <= high < np.inf or (low == 0 < high):
        raise ConfigError(
            f"user-variance={text}: expected one variance, or two with a comma: low,high with "
            "0 < low < high."
        )
    return low, high


def check(keys: HierarchicalKeys) -> None:
    """Refuse variances that are none."""
    variance_limits(keys)


def load(keys: HierarchicalKeys) -> Table:
    """The users 0, 1, ... of the clusters 0, 1, ..., with as many test samples as training ones.

    They are 20 at least.
    """
    seed, m = keys.data_seed, keys.samples_per_user
    drawn = draw(
        seed,
        clusters=keys.num_clusters,
        users=keys.users_per_cluster,
        samples=m,
        features=keys.num_features,
        noise=keys.noise,
        user_variance=variance_limits(keys),
        cluster_variance=keys.cluster_variance,
    )
    n, tests = len(drawn.cluster), max(m, LEAST_TEST)
    fresh = generator(seed, "hierarchical", "test")
    x_test, y_test = responses(drawn.theta, tests, keys.noise, fresh)
    users = np.concatenate([drawn.user, np.repeat(np.arange(n), tests)])
    return Table(
        np.concatenate([drawn.x, x_test]),
        np.concatenate([drawn.y, y_test]),
        users.astype(np.str_),
        drawn.cluster[users].astype(np.str_),
        0,
        0.0,
        1.0,
        test=np.arange(len(users)) >= n * m,
    )


DATASET = DataSet(load, HierarchicalKeys, check=check, users="own", tested=True)
