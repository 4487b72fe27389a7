"""One model for each known cluster, at the users: the mixed model's."""

from __future__ import annotations

from corsage.clients.known_clusters.mixed_model import MixedModelClient


class ExactClusterClient(MixedModelClient):
    """The users, who do what those of the mixed model do."""
