"""Runs of convex clustering to their certificate."""

from __future__ import annotations

from typing import Any

from corsage.strategies.convex_clustering.convex_clustering import ConvexClustering
from tests.support.federations import Notes, federate


def cluster(nodes: int = 1, **keys: Any) -> tuple[ConvexClustering, dict[str, Any], Notes]:
    """A run to its certificate; its first result."""
    more = {"fraction_train": 1.0, "num_rounds": 3000, "evaluate_every": 10_000, **keys}
    strategy, result, notes = federate("convex-clustering", nodes, **more)
    assert isinstance(strategy, ConvexClustering)
    return strategy, result.json()[0], notes


def certificate(strategy: Any) -> Any:
    """What is known of the models at the end."""
    assert isinstance(strategy, ConvexClustering)
    assert strategy.state.certificate is not None
    return strategy.state.certificate
