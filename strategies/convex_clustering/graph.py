"""Whom the sum-of-norms penalty joins, and users that come and go."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from corsage.core.replies import name_users
from corsage.solvers.convex_clustering.edges import Edges
from corsage.strategies.convex_clustering.report import Reported


class Joined(Reported):
    """A strategy whose arrays have a row a user, or a row an edge between users."""

    _graph: tuple[NDArray[np.int64], Edges] | None = None

    @property
    def kept(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of the arrays with a row a user, and of those with a row an edge."""
        raise NotImplementedError

    @property
    def edges(self) -> Edges:
        """The graph of the users that are there now."""
        arrays, n = self.state.arrays, len(self.state.scalars["users"])
        if "edges" not in arrays:
            return all_pairs(n)
        if self._graph is None or self._graph[0] is not arrays["edges"]:
            i, j = arrays["edges"].T
            self._graph = arrays["edges"], Edges(i, j, arrays["weights"], n)
        return self._graph[1]

    def enter(self, users: list[str]) -> None:
        """Take the rows of users that left out of the problem, and give new ones a row."""
        scalars, arrays, d = self.state.scalars, self.state.arrays, len(self.state.arrays["model"])
        before: list[str] = scalars["users"]
        if users == before:
            return
        if gone := [user for user in before if user not in users]:
            self.note(f"{name_users(gone)} gone: the problem is now that of the others")
        old, edges = {user: row for row, user in enumerate(before)}, self.edges
        rows = np.array([old.get(user, -1) for user in users])
        of_users, of_edges = self.kept
        for what in of_users:
            values = arrays.get(what, np.zeros((0, d)))
            fresh = values.mean(0) if len(values) else np.zeros(d)
            arrays[what] = np.stack([values[row] if row >= 0 else fresh for row in rows])
        scalars["users"] = users
        if "edges" in arrays:
            self._keep_edges(rows)
        places = carried(edges, self.edges, rows)
        for what in of_edges:
            values = arrays.get(what, np.zeros((0, d)))
            arrays[what] = np.zeros((len(self.edges), d), order="F")
            arrays[what][places >= 0] = values[places[places >= 0]]

    def _keep_edges(self, rows: NDArray[np.int64]) -> None:
        """The graph's edges between users that are still there; a new user is joined to all."""
        arrays = self.state.arrays
        place = {int(old): new for new, old in enumerate(rows) if old >= 0}
        kept = [
            (min(place[i], place[j]), max(place[i], place[j]), w)
            for (i, j), w in zip(arrays["edges"].tolist(), arrays["weights"].tolist(), strict=True)
            if i in place and j in place
        ]
        new = {int(row) for row in np.flatnonzero(rows < 0)}
        n = len(rows)
        kept += [(i, j, 1.0) for i in range(n) for j in range(i + 1, n) if {i, j} & new]
        kept.sort()
        arrays["edges"] = np.array([(i, j) for i, j, _ in kept], np.int64).reshape(-1, 2)
        arrays["weights"] = np.array([w for *_, w in kept], np.float64)

    def join_neighbours(self, neighbours: int) -> None:
        """The graph of the k nearest local models; those of users without a best one count as 0."""
        zeros = np.zeros((len(self.users), len(self.state.arrays["model"])))
        outcome = self.ask("minimise", {"slope": zeros}, {}, {"x": zeros[0]})
        k = min(neighbours, len(self.users) - 1)
        edges = Edges.knn(outcome.rows["x"], k)
        if edges.pieces > 1:
            self.note(
                f"the graph of {k} neighbours falls into {edges.pieces} pieces, which never fuse: "
                "raise convex-neighbours to join them"
            )
        arrays, shape = self.state.arrays, (len(edges), len(self.state.arrays["model"]))
        arrays |= {"edges": np.stack([edges.i, edges.j], 1), "weights": edges.w}
        for what in self.kept[1]:
            arrays[what] = np.zeros(shape, order="F")


def all_pairs(n: int) -> Edges:
    """All pairs of n users, kept for the rounds to come."""
    if n not in _COMPLETE:
        _COMPLETE.clear()
        _COMPLETE[n] = Edges.all_pairs(n)
    return _COMPLETE[n]


_COMPLETE: dict[int, Edges] = {}


def carried(old: Edges, new: Edges, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each new edge the old one between the same users, or -1; `rows` are their old numbers."""
    known = {(int(i), int(j)): e for e, (i, j) in enumerate(zip(old.i, old.j, strict=True))}
    ends = np.stack([rows[new.i], rows[new.j]], 1)
    ends.sort(axis=1)
    return np.array([known.get((int(i), int(j)), -1) for i, j in ends], np.int64)
