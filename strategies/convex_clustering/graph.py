"""The graph of the sum-of-norms penalty, and users that come and go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.solvers.convex_clustering.halves import Moved
from corsage.strategies.rounds.means.user_rows import places

if TYPE_CHECKING:
    from corsage.solvers.convex_clustering.exact.edges import Edges


@dataclass(frozen=True, eq=False)
class Graph:
    """The users of the problem and the edges between them; a graph of others is another object.

    Parameters
    ----------
    users : the users, in the order of all rows.
    pairs : the edges (E, 2), each once, as row numbers i < j; None: all pairs of users.
    weights : w_ij of the edges (E,); None with all pairs: 1.
    """

    users: list[str]
    pairs: Ints | None = None
    weights: Floats | None = None

    @classmethod
    def of_neighbours(cls, users: list[str], models: Floats, k: int) -> Graph:
        """Pairs of which one is among the k nearest of the other, by their models (N, d)."""
        from corsage.solvers.convex_clustering.exact.edges import Edges

        edges = Edges.knn(models, k)
        return cls(users, np.stack([edges.i, edges.j], 1), edges.w)

    @cached_property
    def edges(self) -> Edges:
        """The graph as the solvers take it."""
        from corsage.solvers.convex_clustering.exact.edges import Edges

        if self.pairs is None or self.weights is None:
            return Edges.all_pairs(len(self.users))
        i, j = np.ascontiguousarray(self.pairs.T)
        return Edges(i, j, self.weights, len(self.users))

    def rows(self, users: Sequence[str]) -> Ints:
        """The row numbers of some of the users."""
        return places(self.users, users)

    def with_users(self, users: list[str]) -> tuple[Graph, Moved]:
        """The graph of the users that are there now, and where their rows and edges were.

        Edges between users that stay are kept; a user that is new is joined to all.
        """
        rows = self.rows(users)
        graph = Graph(users) if self.pairs is None else Graph(users, *self._pairs_among(rows))
        return graph, Moved(rows, edges_before(self.edges, graph.edges, rows))

    def _pairs_among(self, rows: Ints) -> tuple[Ints, Floats]:
        """Pairs and weights where the users are those whose old numbers are `rows`."""
        row_now = {int(old): new for new, old in enumerate(rows) if old >= 0}
        edges = self.edges
        kept = [
            (min(row_now[i], row_now[j]), max(row_now[i], row_now[j]), w)
            for i, j, w in zip(edges.i.tolist(), edges.j.tolist(), edges.w.tolist(), strict=True)
            if i in row_now and j in row_now
        ]
        n, new = len(rows), {int(row) for row in np.flatnonzero(rows < 0)}
        kept += [(i, j, 1.0) for i in range(n) for j in range(i + 1, n) if {i, j} & new]
        kept.sort()
        pairs = np.array([(i, j) for i, j, _ in kept], np.int64).reshape(-1, 2)
        return pairs, np.array([w for *_, w in kept], np.float64)


def edges_before(old: Edges, new: Edges, rows: Ints) -> Ints:
    """For each new edge the old one between the same users, or -1; `rows` are their old numbers."""
    known = {(int(i), int(j)): e for e, (i, j) in enumerate(zip(old.i, old.j, strict=True))}
    ends = np.stack([rows[new.i], rows[new.j]], 1)
    ends.sort(axis=1)
    return np.array([known.get((int(i), int(j)), -1) for i, j in ends], np.int64)
