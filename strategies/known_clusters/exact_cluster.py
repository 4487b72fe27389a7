"""One model for each known cluster, solved exactly: the minimiser of the sum of its losses.

The oracle of Armacki et al. 2022, section V, and full pooling inside clusters. It is the mixed
model with gamma = inf and lambda = 0.
"""

from __future__ import annotations

from corsage.strategies.known_clusters.mixed_model import MixedModel


class ExactCluster(MixedModel):
    """The server's side: the mixed model with these strengths."""

    name = "exact-cluster"
    fixed = {"known_gamma": "inf", "known_lambda": "0"}  # noqa: RUF012
    together = False
