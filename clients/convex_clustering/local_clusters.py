"""Clusters of local models, at the users: they answer as those of convex clustering do."""

from __future__ import annotations

from corsage.clients.convex_clustering.convex_clustering import ConvexClusteringClient


class LocalClustersClient(ConvexClusteringClient):
    """The users, who do what those of convex clustering do."""
