"""One model for all users, at the users: the mixed model's."""

from __future__ import annotations

from corsage.clients.known_clusters.mixed_model import MixedModelClient


class ExactGlobalClient(MixedModelClient):
    """The users, who do what those of the mixed model do."""
