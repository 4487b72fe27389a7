"""What the tests of FedRep's clustered heads have in common: keys, clusters, and FedRep's body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from corsage.core.messages.encoding import decode
from tests.support.federations import CLUSTER_MAP
from tests.support.reference import Vector

HEAD = 170  # parameters of the head: 16 features, 10 classes
CONVEX: dict[str, Any] = {
    "fedrep_convex_lambda": 0.01,
    "fedrep_convex_rho": 0.5,
    "fedrep_convex_neighbours": 0,
}
KNOWN: dict[str, Any] = {
    "fedrep_known_gamma": 2.0,
    "fedrep_known_lambda": 3.0,
    "cluster_map": CLUSTER_MAP,
}
CLUSTERS = {str(i): "abc"[i % 3] for i in range(12)}


def body_of(arrays: Mapping[str, Any]) -> Vector:
    """FedRep's body among the arrays that a run ends with."""
    return np.concatenate(
        [a.reshape(-1) for n, a in decode(arrays).items() if not n.startswith("cluster-")]
    )
