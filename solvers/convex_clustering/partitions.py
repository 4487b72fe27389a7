"""Partitions of the users that compete: from their local models, and along the path of lambda."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.cluster.vq import kmeans2

from corsage.core.arrays import Floats, Ints
from corsage.core.seeding import generator
from corsage.solvers.convex_clustering.reading import candidate, in_order
from corsage.solvers.losses.held_out import Fold

SMALLEST_CLUSTER, MOST_CLUSTERS = 3, 10
"""Users a cluster of the path has at least, and clusters there are at most."""
KMEANS_RUNS = 5
"""Runs of k-means for each number of clusters."""

ONE_MODEL, OWN_MODELS, KMEANS, WARD, LAMBDA = "one model", "own models", "k-means", "Ward", "path"
Key = tuple[str, int]
"""A procedure, and how many clusters it looks for."""


def one_cluster(count: int) -> Ints:
    """The partition with one cluster."""
    return np.zeros(count, np.int64)


def partitions(local: Floats, path: Sequence[Floats], seed: int) -> dict[Key, Ints]:
    """The clusters of each procedure, from local models and from those along the path."""
    n = len(local)
    found: dict[Key, Ints] = {(ONE_MODEL, 1): one_cluster(n), (OWN_MODELS, n): np.arange(n)}
    found |= {(LAMBDA, count): labels for count, labels in along_path(path).items()}
    tree = linkage(local, "ward") if n > 1 else None
    for count in range(2, min(MOST_CLUSTERS, n - 1) + 1):
        found[WARD, count] = in_order(cut_tree(tree, n_clusters=[count])[:, 0])
        found[KMEANS, count] = k_means(local, count, seed)
    return found


def shown(x: Floats) -> Ints:
    """The clusters that models along the path show."""
    labels = candidate(x, SMALLEST_CLUSTER, MOST_CLUSTERS)
    return one_cluster(len(x)) if labels is None else labels


def along_path(path: Sequence[Floats]) -> dict[int, Ints]:
    """Of each number of clusters the partition that most lambda show, the largest lambda first."""
    seen: dict[bytes, list[Ints]] = {}
    for labels in map(shown, path):
        seen.setdefault(labels.tobytes(), []).append(labels)
    found: dict[int, Ints] = {}
    for labels, *_ in sorted(seen.values(), key=len, reverse=True):
        found.setdefault(int(labels.max()) + 1, labels)
    return dict(sorted(found.items()))


def shown_at(path: Sequence[Floats], labels: Ints) -> int | None:
    """The middle one of the places of the path that show these clusters."""
    places = [place for place, x in enumerate(path) if np.array_equal(shown(x), labels)]
    return places[len(places) // 2] if places else None


def named_alike(wanted: dict[Fold | None, dict[Key, Ints]]) -> dict[Fold | None, dict[Key, Ints]]:
    """The partitions of all folds under the names of those of all samples.

    Where a fold's path does not show so many clusters, they are the most below that it shows.
    """

    def alike(own: dict[Key, Ints], key: Key) -> Ints:
        counts = [count for kind, count in own if kind == key[0] and count <= key[1]]
        return own[key[0], max(counts)] if counts else one_cluster(len(own[ONE_MODEL, 1]))

    return {fold: {key: alike(own, key) for key in wanted[None]} for fold, own in wanted.items()}


def k_means(x: Floats, count: int, seed: int) -> Ints:
    """The best of some runs of k-means."""
    best, least = one_cluster(len(x)), np.inf
    count = min(count, len(np.unique(x, axis=0)))
    if count < 2:
        return best
    for start in range(KMEANS_RUNS):
        rng = generator(seed, "k-means", count, start)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of clusters that are empty: fewer, then
            centres, labels = kmeans2(x, count, minit="++", rng=rng)
        spread = float(np.square(x - centres[labels]).sum())
        if spread < least:
            best, least = in_order(labels), spread
    return best
