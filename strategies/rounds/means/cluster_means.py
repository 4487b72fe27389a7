"""What methods with one model a cluster share at the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from corsage.core.arrays import Arrays, Floats32
from corsage.core.messages.encoding import encode

if TYPE_CHECKING:
    from corsage.networks.network import Network


def cluster_sums(
    rows: Floats32, labels: Sequence[int], weights: NDArray[np.float64], clusters: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weighted sums over the users of each cluster (clusters, P), and of their weights."""
    chosen = np.asarray(labels)[None] == np.arange(clusters)[:, None]
    each = np.where(chosen, weights, 0.0)
    return each @ rows.astype(np.float64), each.sum(axis=1)


def cluster_means(
    rows: Floats32, labels: Sequence[int], weights: NDArray[np.float64], empty: Floats32
) -> Floats32:
    """The mean over the users of each cluster; a cluster without users has its row of `empty`."""
    sums, total = cluster_sums(rows, labels, weights, len(empty))
    means = np.array(empty, np.float32)
    full = total > 0
    means[full] = sums[full] / total[full, None]
    return means


def named_models(network: Network, models: Floats32) -> ArrayRecord:
    """One model a cluster as `cluster-0.fc1.weight`, ..."""
    named = Arrays()
    for k, model in enumerate(models):
        named |= {f"cluster-{k}.{name}": a for name, a in network.named(model).items()}
    return encode(named)
