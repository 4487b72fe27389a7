"""Moons: two classes of points on two half circles that reach into each other, turned by cluster.

The k clusters' moons are turned by 0, 1/k, 2/k, ... of a full turn, so no single model fits all. A
user draws its points from its cluster's moons, and as many test points, but 20 at least.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from corsage.core.keys import key
from corsage.core.seeding import generator
from corsage.datasets.data_set import DataSet
from corsage.datasets.sample_table import Table
from corsage.datasets.shared_keys import ClusterKeys


@dataclass(frozen=True)
class MoonsKeys(ClusterKeys):
    """Keys of the moons."""

    moons_noise: float = key(0.1, "standard deviation of the points about their arcs", low=0.0)


def load(keys: MoonsKeys) -> Table:
    """The users 0, 1, ... of the clusters 0, 1, ..., each with training points first."""
    k, n = keys.num_clusters, keys.num_clusters * keys.users_per_cluster
    m, tests = keys.samples_per_user, max(keys.samples_per_user, 20)
    user = np.repeat(np.arange(n), m + tests)
    cluster = user // keys.users_per_cluster
    rng = generator(keys.data_seed, "moons")
    y, arc = rng.integers(0, 2, len(user)), np.exp(1j * np.pi * rng.random(len(user)))
    points = np.where(y == 0, arc, 1 + 0.5j - arc) - (0.5 + 0.25j)
    points += keys.moons_noise * (rng.normal(size=(len(user), 2)) @ [1, 1j])
    points *= np.exp(2j * np.pi * cluster / k)
    x = np.column_stack([points.real, points.imag]).astype(np.float32)
    names, groups = user.astype(np.str_), cluster.astype(np.str_)
    test = np.tile(np.arange(m + tests) >= m, n)
    return Table(x, y, names, groups, 2, 0.0, 1.0, test=test)


DATASET = DataSet(load, MoonsKeys, users="own", tested=True)
