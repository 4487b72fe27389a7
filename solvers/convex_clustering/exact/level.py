"""Clusters as points: a problem of convex clustering with fewer users."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from corsage.core.arrays import Bools, Floats, Ints
from corsage.solvers.convex_clustering.exact.costs import PointCosts
from corsage.solvers.convex_clustering.exact.edges import Edges


@dataclass(frozen=True)
class Level:
    """A partition, and how the users' edges lie between its clusters.

    Parameters
    ----------
    users : their costs.
    labels : the cluster of each user, (n,).
    costs, graph : of the clusters.
    across : the users' edges between two clusters, (E,).
    place, sign : for these the clusters' edge, and 1 or -1 if it goes the other way.
    share : their part of the weight of that edge.
    """

    users: PointCosts
    labels: Ints
    costs: PointCosts
    graph: Edges
    across: Bools
    place: Ints
    sign: Floats
    share: Floats

    @classmethod
    def of(cls, costs: PointCosts, edges: Edges, labels: Ints) -> Level:
        """That of a partition."""
        count = int(labels.max()) + 1
        i, j = labels[edges.i], labels[edges.j]
        across = i != j
        i, j, w = i[across], j[across], edges.w[across]
        codes, place = np.unique(np.minimum(i, j) * count + np.maximum(i, j), return_inverse=True)
        total = np.bincount(place, w, len(codes)).astype(np.float64, copy=False)
        graph = Edges(codes // count, codes % count, total, count)
        sign = np.where(i < j, 1.0, -1.0)
        return cls(costs, labels, costs.fused(labels), graph, across, place, sign, w / total[place])

    def gathered(self, mu: Floats) -> Floats:
        """Duals of the users' edges (E, d), added up for the clusters' edges."""
        own = self.sign * mu.T.compress(self.across, axis=1)
        sums = [np.bincount(self.place, column, len(self.graph)) for column in own]
        return np.asarray(np.stack(sums).T, np.float64)

    def spread(self, mu: Floats, inside: Floats) -> Floats:
        """Duals of the clusters' edges, on the users' edges by weight; those `inside` beside."""
        found = inside.T.copy()
        found[:, self.across] = self.sign * self.share * mu.T.take(self.place, axis=1)
        return found.T
