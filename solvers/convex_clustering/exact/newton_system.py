"""The Newton system of the sum-of-norms problem, and its solution.

(blockdiag(H_i) + B' W B) dx = -g, where an edge's block is W_e = a_e I - b_e u_e u_e' with a unit
vector u_e: a weighted graph Laplacian with small matrices for weights. It is factored where that is
cheap: dense up to a thousand unknowns or so, sparse where the graph's own Laplacian fills in
little. Else conjugate gradients do without any matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs
from scipy.sparse.linalg import LinearOperator, cg

from corsage.core.arrays import Floats
from corsage.solvers.convex_clustering.exact.edges import Edges
from corsage.solvers.convex_clustering.exact.sparse_factor import Solve

DENSE, MOST_FILL = 1500, 100_000_000
"""Unknowns up to which the matrix is dense, and entries of a sparse factor that are accepted."""
LIMIT = 500
"""Steps of conjugate gradients."""
TINY = 1e-100
DIAGONAL_SHARE, DAMPING_GROWTH = 1e-13, 1e3
"""The share of the diagonal's mean that is added to it, and its growth when a factor fails."""


@dataclass(frozen=True)
class System:
    """The matrix: `blocks` H_i (n, d, d), and a, b (E,), unit (E, d) of the edges."""

    blocks: Floats
    edges: Edges
    a: Floats
    b: Floats
    unit: Floats

    def solve(self, g: Floats, tolerance: float) -> Floats:
        """dx (n, d); `tolerance` is the residual's share of |g| where the solution is iterative.

        Not a number where the matrix is beyond all bounds.
        """
        if self.direct:
            return self.factored()(-g)
        return self._iterative(g, tolerance)

    @property
    def direct(self) -> bool:
        """True if a factor is affordable."""
        return small(self.edges, self.blocks.shape[1])

    def factored(self, damping: float = DIAGONAL_SHARE) -> Solve:
        """The solution for any right side, by a factor; damped by a share of the mean diagonal."""
        d = self.blocks.shape[1]
        return self._sparse(damping) if affordable(self.edges, d) else self._dense(damping)

    def bends(self) -> Floats:
        """The blocks W_e, (E, d, d)."""
        found, at = -self._rooted[:, :, None] * self._rooted[:, None], np.arange(self.d)
        found[:, at, at] += self.a[:, None]
        return np.asarray(found)

    @property
    def d(self) -> int:
        """The number of a user's parameters."""
        return int(self.blocks.shape[1])

    @cached_property
    def _rooted(self) -> Floats:
        """b_e^1/2 u_e, (E, d)."""
        return np.ascontiguousarray(np.sqrt(self.b)[:, None] * self.unit)

    def matrix(self) -> Floats:
        """The upper triangle; unknown i d + k is the parameter k of user i. (n d, n d)."""
        n, d = self.blocks.shape[:2]
        found, at = np.zeros((n, d, n, d)), np.arange(n)
        found[self.edges.i, :, self.edges.j] = -self.bends()
        found[at, :, at] = self.diagonal()
        return found.reshape(n * d, n * d)

    def _dense(self, damping: float) -> Solve:
        matrix = self.matrix()
        diagonal = np.diagonal(matrix).copy()
        size = float(np.abs(diagonal).mean())  # rounding makes the mean of some negative
        damping = damping * size + TINY
        while np.isfinite(damping):
            np.fill_diagonal(matrix, diagonal + damping)
            factor, failed = dpotrf(matrix.T, lower=1, clean=0)  # the transpose is LAPACK's order
            if not failed:
                return partial(_solved, factor)
            damping = max(DAMPING_GROWTH * damping, DIAGONAL_SHARE * size)
        return _nowhere

    def _sparse(self, damping: float) -> Solve:
        """By a sparse factor, one d x d block an edge."""
        d, own, cross = self.d, self.diagonal(), -self.bends()
        pattern = self.edges.pattern(d)
        size = float(np.abs(np.trace(own, axis1=1, axis2=2)).mean()) / d
        damping = damping * size + TINY
        while np.isfinite(damping):
            solve = pattern.factored(cross, own + damping * np.eye(d))
            if solve is not None:
                return solve
            damping = max(DAMPING_GROWTH * damping, DIAGONAL_SHARE * size)
        return _nowhere

    def _iterative(self, g: Floats, tolerance: float) -> Floats:
        """Conjugate gradients, preconditioned with the diagonal blocks."""
        own, d = self.diagonal(), g.shape[1]
        own += DIAGONAL_SHARE * float(np.trace(own, axis1=1, axis2=2).mean()) / d * np.eye(d)
        inverse = np.asarray(np.linalg.inv(own), np.float64)

        def operator(product: Solve) -> LinearOperator:
            return LinearOperator(
                2 * (g.size,), lambda v: product(v.reshape(g.shape)).ravel(), dtype=np.float64
            )  # without dtype it is tried on integers

        near = operator(partial(_times, inverse))
        x, _ = cg(operator(self.times), -g.ravel(), rtol=tolerance, maxiter=LIMIT, M=near)
        return np.asarray(x.reshape(g.shape))

    def times(self, p: Floats) -> Floats:
        """The matrix by a vector (n, d)."""
        z = self.edges.differences(p)
        along = self.b * (self.unit * z).sum(1)
        z *= self.a[:, None]
        z -= along[:, None] * self.unit
        return _times(self.blocks, p) + self.edges.adjoint(z)

    def diagonal(self) -> Floats:
        """The diagonal blocks, (n, d, d): user by user, or by parameters if these are fewer."""
        ends, rooted = self.edges.ends, self._rooted
        found = self.blocks + (ends @ self.a)[:, None, None] * np.eye(self.d)
        if self.d < self.edges.n:
            for k in range(self.d):
                found[:, k] -= ends @ (rooted[:, k, None] * rooted)
        else:
            for user, edges in enumerate(np.split(ends.indices, ends.indptr[1:-1])):
                found[user] -= rooted[edges].T @ rooted[edges]
        return np.asarray(found, np.float64)


def small(edges: Edges, d: int) -> bool:
    """True if any factor is affordable."""
    return edges.n * d <= DENSE or affordable(edges, d)


def affordable(edges: Edges, d: int) -> bool:
    """True if a sparse factor is affordable."""
    return edges.sparse and (edges.narrow(d) or edges.fill * d**2 <= MOST_FILL)


def _times(blocks: Floats, p: Floats) -> Floats:
    return np.asarray((blocks @ p[..., None])[..., 0])


def _solved(factor: Floats, g: Floats) -> Floats:
    return np.asarray(dpotrs(factor, g.ravel(), lower=1)[0].reshape(g.shape))


def _nowhere(g: Floats) -> Floats:
    """No solution: the matrix is beyond all bounds."""
    return np.full_like(g, np.nan)
