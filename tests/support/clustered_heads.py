"""What the tests of FedRep's clustered heads have in common: keys, clusters, and FedRep's body."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from corsage.core.wire import decode
from tests.support.reference import Vector

HEAD = 170  # parameters of the head: 16 features, 10 classes
CONVEX: dict[str, Any] = {
    "fedrep_heads": "convex-clustering",
    "fedrep_heads_lambda": 0.01,
    "fedrep_heads_rho": 0.5,
    "fedrep_heads_neighbours": 0,
}
KNOWN: dict[str, Any] = {
    "fedrep_heads": "known-clusters",
    "fedrep_heads_gamma": 2.0,
    "fedrep_heads_middle": 3.0,
}
CLUSTERS = {str(i): "abc"[i % 3] for i in range(12)}


def known_clusters(folder: Path) -> dict[str, Any]:
    """The key that says which cluster a user is in."""
    path = folder / "clusters.json"
    path.write_text(json.dumps(CLUSTERS))
    return {"cluster_map": str(path)}


def body_of(arrays: Mapping[str, Any]) -> Vector:
    """FedRep's body among the arrays that a run ends with."""
    return np.concatenate(
        [a.reshape(-1) for n, a in decode(arrays).items() if not n.startswith("cluster-")]
    )
