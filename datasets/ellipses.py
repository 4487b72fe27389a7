"""Ellipses: two classes of points in the plane, three clusters of users (Armacki et al. 2022).

The paper's own ellipses are not known; these were chosen to resemble its problem. An ellipse is a
centre, two semi-axes and the angle of the first axis; both classes of a cluster have the same axes.
A cluster has 100 points a class, of which each of its users draws some; it has 2,000 test points,
which are those of all its users.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from corsage.core.arrays import Ints
from corsage.core.errors import ConfigError
from corsage.datasets.data_set import DataSet
from corsage.datasets.sample_table import Numbers, Table
from corsage.datasets.shared_keys import ClusterKeys

POOL, TEST = 100, 1000  # points a class


@dataclass(frozen=True)
class Shape:
    """One cluster: the centres of its classes +1 and -1, the semi-axes, and their angle."""

    positive: tuple[float, float]
    negative: tuple[float, float]
    axes: tuple[float, float]
    degrees: float


SHAPES = (
    Shape((-0.87, -0.59), (0.84, 2.99), (3.07, 0.87), 60),
    Shape((1.82, -2.13), (-1.59, 0.65), (2.38, 2.02), 125),
    Shape((-1.26, 2.12), (-0.35, -1.42), (4.07, 0.58), 107),
)


@dataclass(frozen=True, eq=False)
class Ellipses:
    """The points in float64.

    Parameters
    ----------
    a, l : each user's points (n, m, 2) and their labels -1 or +1 (n, m).
    cluster : each user's cluster (n,).
    test_a, test_l : each cluster's test points (k, 2000, 2) and their labels (k, 2000).
    """

    a: Numbers
    l: Numbers  # noqa: E741 - the paper's name
    cluster: Ints
    test_a: Numbers
    test_l: Numbers


def draw(seed: int = 1, *, clusters: int = 3, users: int = 20, samples: int = 10) -> Ellipses:
    """The users of the first so many clusters, one cluster after the other, then all test points.

    The generator is numpy's own for `seed`, not one keyed by purpose: the points are known by sums.
    """
    rng = np.random.default_rng(seed)
    shapes = SHAPES[:clusters]
    a, labels = [], []
    for shape in shapes:
        points, signs = classes(shape, POOL, rng)
        for _ in range(users):
            rows = rng.choice(2 * POOL, samples, replace=False)
            a.append(points[rows])
            labels.append(signs[rows])
    test = [classes(shape, TEST, rng) for shape in shapes]
    return Ellipses(
        np.stack(a),
        np.stack(labels),
        np.repeat(np.arange(len(shapes)), users),
        np.stack([points for points, _ in test]),
        np.stack([signs for _, signs in test]),
    )


def classes(shape: Shape, many: int, rng: np.random.Generator) -> tuple[Numbers, Numbers]:
    """So many points of class +1, then of class -1, and the labels."""
    centres = (shape.positive, shape.negative)
    points = [inside(centre, shape.axes, shape.degrees, many, rng) for centre in centres]
    return np.concatenate(points), np.repeat([1.0, -1.0], many)


def inside(
    centre: tuple[float, float],
    axes: tuple[float, float],
    degrees: float,
    many: int,
    rng: np.random.Generator,
) -> Numbers:
    """Points drawn evenly from an ellipse."""
    r = np.sqrt(rng.random(many))
    t = 2 * np.pi * rng.random(many)
    flat = np.column_stack([axes[0] * r * np.cos(t), axes[1] * r * np.sin(t)])
    cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    turned: Numbers = flat @ np.array([[cos, -sin], [sin, cos]]).T + np.array(centre)
    return turned


def check(keys: ClusterKeys) -> None:
    """Refuse more clusters or points than there are."""
    if keys.num_clusters > len(SHAPES):
        raise ConfigError(
            f"num-clusters={keys.num_clusters}: dataset=ellipses has {len(SHAPES)}; set at most "
            "that."
        )
    if keys.samples_per_user > 2 * POOL:
        raise ConfigError(
            f"samples-per-user={keys.samples_per_user}: dataset=ellipses draws them from "
            f"{2 * POOL}; set at most that."
        )


def load(keys: ClusterKeys) -> Table:
    """The users 0, 1, ... of the clusters 0, 1, ..., with -1 as class 0."""
    drawn = draw(
        keys.data_seed,
        clusters=keys.num_clusters,
        users=keys.users_per_cluster,
        samples=keys.samples_per_user,
    )
    n, m = drawn.l.shape
    a = np.concatenate([drawn.a, drawn.test_a[drawn.cluster]], axis=1)
    signs = np.concatenate([drawn.l, drawn.test_l[drawn.cluster]], axis=1)
    many = signs.shape[1]
    return Table(
        a.reshape(n * many, 2).astype(np.float32),
        (signs > 0).astype(np.int64).ravel(),
        np.repeat(np.arange(n).astype(np.str_), many),
        np.repeat(drawn.cluster.astype(np.str_), many),
        2,
        0.0,
        1.0,
        test=np.tile(np.arange(many) >= m, n),
    )


DATASET = DataSet(load, ClusterKeys, check=check, users="own", tested=True)
