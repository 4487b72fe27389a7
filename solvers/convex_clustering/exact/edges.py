"""The graph of the sum-of-norms penalty: which users' models are pulled towards each other.

Arrays over edges (E, d) are kept column by column (Fortran order): sums and scalings along the
edges are then contiguous, which is several times as fast as along rows of a few numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csc_array, csr_array
from scipy.sparse.csgraph import connected_components, reverse_cuthill_mckee
from scipy.sparse.linalg import SuperLU
from scipy.spatial import KDTree

from corsage.core.arrays import Bools, Floats, Ints
from corsage.core.errors import ConfigError, DataError
from corsage.solvers.convex_clustering.exact.numbers_given import matrix, number, positive, whole
from corsage.solvers.convex_clustering.exact.potentials import iterated
from corsage.solvers.convex_clustering.exact.sparse_factor import (
    Band,
    Pattern,
    Solve,
    placed,
    symmetric_factor,
)

GROUND, REFINEMENTS = 1e-10, 3
"""The damping of a Laplacian that is factored, and solutions by turns with residuals."""
ALL_AT_ONCE = 12
"""Numbers of a model from which on all are added up at once: each alone is quicker for few."""
QUICK, PACE = 2e7, 1000.0
"""Operations of a band's factor that take no time, and how many an entry of a sparse one takes."""


@dataclass(frozen=True, eq=False)
class Edges:
    """Pairs i < j of n users, each pair at most once, with weights w_ij > 0.

    A graph in pieces is allowed: each piece is then a problem of its own.

    Parameters
    ----------
    i, j : the users at an edge's ends, (E,).
    w : the edges' weights, (E,).
    n : the number of users.
    """

    i: Ints
    j: Ints
    w: Floats
    n: int

    def __post_init__(self) -> None:
        """Refuse what is no such graph."""
        for name, rows in (("i", whole(self.i, "i")), ("j", whole(self.j, "j"))):
            object.__setattr__(self, name, rows)
        object.__setattr__(self, "w", positive(self.w))
        if not len(self.i) == len(self.j) == len(self.w):
            raise DataError("edges: i, j and w must be of one length.")
        if len(self.i) and not (
            self.i.min() >= 0 and self.j.max() < self.n and np.all(self.i < self.j)
        ):
            raise DataError(f"edges: pairs must be 0 <= i < j < n = {self.n}.")
        codes = self.codes
        if np.any(np.diff(codes) <= 0) and len(np.unique(codes)) < len(codes):
            raise DataError("edges: a pair is there twice; add up its weights.")

    @classmethod
    def all_pairs(cls, n: int, weight: float = 1.0) -> Edges:
        """Every user with every other: the penalty of (3)."""
        if n < 0:
            raise ConfigError(f"edges: n={n} users; it must be a number from 0 on.")
        i, j = (ends.astype(np.int64) for ends in np.triu_indices(n, 1))
        return cls(i, j, np.full(len(i), weight), n)

    @classmethod
    def knn(cls, points: Floats, k: int = 10, decay: float = 0.0) -> Edges:
        """Pairs of which one is among the k nearest of the other; w = exp(-decay |p_i - p_j|^2).

        The graph may be in pieces (`pieces` counts them): far groups are then never fused.
        """
        points, decay = matrix(points, "edges: points"), number(decay, "edges: decay")
        n = len(points)
        if not (isinstance(k, int | np.integer) and 1 <= k < n):
            raise ConfigError(f"edges: k={k} neighbours of {n} points; it must be 1 to {n - 1}.")
        near = KDTree(points).query(points, k + 1)[1]
        codes = np.sort(_pairs(np.repeat(np.arange(n), k + 1), near.ravel(), n))
        codes = codes[np.diff(codes, prepend=-1) > 0]
        i, j = codes // n, codes % n
        i, j = i[i < j], j[i < j]
        w = np.exp(-decay * np.square(points[i] - points[j]).sum(1))
        return cls(i, j, np.maximum(w, np.finfo(np.float64).tiny), n)

    def __len__(self) -> int:
        """The number of edges."""
        return len(self.i)

    @property
    def codes(self) -> Ints:
        """i n + j: one number a pair."""
        return self.i * self.n + self.j

    @property
    def complete(self) -> bool:
        """True if all pairs are there."""
        return len(self) == self.n * (self.n - 1) // 2

    @cached_property
    def degrees(self) -> Ints:
        """The number of edges of each user, (n,)."""
        return np.bincount(self.i, minlength=self.n) + np.bincount(self.j, minlength=self.n)

    @property
    def pieces(self) -> int:
        """The number of connected pieces; users without edges are one each."""
        return int(self.components().max(initial=-1)) + 1

    def components(self, mask: Bools | None = None) -> Ints:
        """The connected piece of each user, 0 that of the first, (n,); by the masked edges only."""
        order, ends, starts = self._rows
        if mask is not None:
            kept = mask[order]
            ends, starts = ends[kept], np.append(0, np.cumsum(kept))[starts].astype(np.int32)
        graph = csr_array((np.ones(len(ends)), ends, starts), shape=(self.n, self.n))
        return np.asarray(connected_components(graph, directed=False)[1], np.int64)

    @cached_property
    def _rows(self) -> tuple[Ints, NDArray[np.int32], NDArray[np.int32]]:
        """The edges in the order of i, their j, and where those of each i begin."""
        order = np.argsort(self.i, kind="stable")
        starts = np.append(0, np.cumsum(np.bincount(self.i, minlength=self.n)))
        return order, self.j[order].astype(np.int32), starts.astype(np.int32)

    def differences(self, x: Floats) -> Floats:
        """B x: x_i - x_j of every edge, (E, d)."""
        columns = np.ascontiguousarray(x.T)
        found = columns.take(self.i, axis=1)
        found -= columns.take(self.j, axis=1)
        return np.asarray(found.T)

    def adjoint(self, mu: Floats) -> Floats:
        """B' mu: v_i = sum_j mu_ij with mu_ji = -mu_ij, (n, d)."""
        if mu.shape[1] > ALL_AT_ONCE:
            return np.asarray(self._incidence @ mu)
        found = np.empty((mu.shape[1], self.n))
        for own, column in zip(mu.T, found, strict=True):
            column[:] = self._incidence @ own
        return np.asarray(found.T)

    @cached_property
    def _incidence(self) -> csr_array:
        """B', sparse."""
        count = len(self)
        signs, edges = np.repeat([1.0, -1.0], count), np.tile(np.arange(count), 2)
        users = np.concatenate([self.i, self.j])
        return csr_array((signs, (users, edges)), shape=(self.n, count))

    @cached_property
    def ends(self) -> csr_array:
        """|B'|: who is at an end of each edge, sparse (n, E)."""
        return csr_array(abs(self._incidence))

    @property
    def sparse(self) -> bool:
        """True if few of all pairs are there."""
        return 20 * len(self) < self.n**2

    @cached_property
    def fill(self) -> int:
        """The entries of a sparse factor of the graph's Laplacian."""
        return int(self._factor.nnz + self.n) // 2

    def pattern(self, d: int) -> Pattern | Band:
        """The places of the blocks of size d of a matrix on this graph."""
        if d not in self._patterns:
            own = Band.of(self.i, self.j, *self._banded, d) if self.narrow(d) else None
            self._patterns[d] = own or Pattern.of(self.i, self.j, self._factor.perm_c, d)
        return self._patterns[d]

    @cached_property
    def _patterns(self) -> dict[int, Pattern | Band]:
        return {}

    def narrow(self, d: int) -> bool:
        """True if a band is the quickest to factor; of small ones nothing else is looked at."""
        work = self.n * d * (self._banded[1] * d) ** 2
        return work <= QUICK or work <= PACE * self.fill * d**2

    @cached_property
    def _banded(self) -> tuple[Ints, int]:
        """Places of the users (n,) that are near for neighbours, and how far they are at most."""
        if self._whole is not self:
            return self._whole._banded
        _, ends, starts = self._rows
        graph = csr_array((np.ones(len(ends)), ends, starts), shape=(self.n, self.n))
        place = np.empty(self.n, np.int64)
        place[reverse_cuthill_mckee((graph + graph.T).tocsr(), True)] = np.arange(self.n)
        return place, int(np.abs(place[self.i] - place[self.j]).max(initial=0))

    @cached_property
    def _solve(self) -> Solve:
        """Of the Laplacian: for any right side (n, d)."""
        cross, own = self._laplacian
        if self._whole.narrow(1):
            solve = self.pattern(1).factored(cross[:, None, None], own[:, None, None])
            if solve is not None:
                return solve
        place = self._whole._factor.perm_c
        factor = symmetric_factor(self._matrix(place), "NATURAL")
        return lambda need: placed(need, place, 1, factor.solve)

    @cached_property
    def _laplacian(self) -> tuple[Floats, Floats]:
        """The Laplacian with w^2, a little damped so that it is regular: on edges and users."""
        square = self.w**2
        degree = np.bincount(self.i, square, self.n) + np.bincount(self.j, square, self.n)
        return -square, np.asarray(degree + GROUND * (float(degree.mean()) or 1.0), np.float64)

    @cached_property
    def _factor(self) -> SuperLU:
        """Of the Laplacian, in an order that keeps it sparse."""
        return symmetric_factor(self._matrix(np.arange(self.n)))

    def _matrix(self, place: Ints) -> csc_array:
        """The Laplacian of users in other places."""
        (cross, own), i, j = self._laplacian, place[self.i], place[self.j]
        entries = np.concatenate([cross, cross, own])
        rows = np.concatenate([i, j, place]), np.concatenate([j, i, place])
        return coo_array((entries, rows), shape=(self.n, self.n)).tocsc()

    def masked(self, mask: Bools) -> Edges:
        """The graph of these edges only; its Laplacian is factored in the order of the whole."""
        found = Edges(self.i[mask], self.j[mask], self.w[mask], self.n)
        if self.sparse:  # all pairs have no order that is worth keeping
            found.__dict__["_part_of"] = self._whole
        return found

    @property
    def _whole(self) -> Edges:
        """The graph that it is a part of."""
        whole: Edges = self.__dict__.get("_part_of", self)
        return whole

    def carry(self, need: Floats, times: int = REFINEMENTS) -> Floats:
        """The smallest flow (E, d), in the sense of sum |mu_e|^2/w_e^2, with B' mu = need.

        `need` must add up to 0 on each piece. The flow is w_e^2 (B y)_e for a potential y that
        solves a graph Laplacian's system, of few edges by a factor, `times` with residuals.
        """
        if not len(self):
            return np.zeros((0, need.shape[1]))
        square = (self.w**2)[:, None]
        y = self._factored(need, square, times) if self.sparse else iterated(self, need)
        return np.asarray(square * self.differences(y))

    def _factored(self, need: Floats, square: Floats, times: int) -> Floats:
        """The potential by the sparse factor; the damping's error is made good by repetition."""
        solve = self._solve
        y = solve(np.ascontiguousarray(need))
        for _ in range(times - 1):
            lack = need - self.adjoint(square * self.differences(y))
            y = y + solve(np.ascontiguousarray(lack))
        return y

    def merged(self, labels: Ints, count: int) -> Edges:
        """The graph of `count` clusters: weights between two of them add up, those inside go."""
        codes = _pairs(labels[self.i], labels[self.j], count)
        across = labels[self.i] != labels[self.j]
        found, place = np.unique(codes[across], return_inverse=True)
        w = np.bincount(place, self.w[across], len(found)).astype(np.float64, copy=False)
        return Edges(found // count, found % count, w, count)


def _pairs(i: Ints, j: Ints, n: int) -> Ints:
    """min n + max: one number for a pair in either order."""
    return np.minimum(i, j) * n + np.maximum(i, j)


def norms(rows: Floats) -> Floats:
    """The Euclidean norm of each row, (E,)."""
    return np.asarray(np.sqrt(np.square(rows).sum(1)))
