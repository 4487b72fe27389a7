"""The Newton system of the sum-of-norms problem, and its solution.

(blockdiag(H_i) + B' W B) dx = -g, where an edge's block is W_e = a_e I - b_e u_e u_e' with a unit
vector u_e: a weighted graph Laplacian with small matrices for weights. It is factored where that is
cheap: dense up to a thousand unknowns or so, sparse where the graph's own Laplacian fills in
little. Else conjugate gradients do without any matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs
from scipy.sparse import bsr_array, eye_array

from corsage.core.arrays import Floats
from corsage.solvers.convex_clustering.edges import Edges, symmetric_factor

DENSE, FILL = 1500, 2_000_000
"""Unknowns up to which the matrix is dense, and entries of a sparse factor that are accepted."""
LIMIT = 500
"""Steps of conjugate gradients."""
TINY = 1e-100
DAMPING, MORE = 1e-13, 1e3
"""What is added to the diagonal, as a share of its mean, and its growth when a factor fails."""


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
        if g.size <= DENSE:
            return self._dense(g)
        if self.edges.sparse and self.edges.fill * g.shape[1] ** 2 <= FILL:
            return self._sparse(g)
        return self._iterative(g, tolerance)

    def weights(self, k: int, m: int) -> Floats:
        """Entry (k, m) of every edge's W_e, (E,)."""
        cross = self.b * self.unit[:, k] * self.unit[:, m]
        return self.a - cross if k == m else -cross

    def matrix(self) -> Floats:
        """The lower triangle; unknown k n + i is the parameter k of user i. (d n, d n)."""
        n, d = self.blocks.shape[:2]
        i, j, at = self.edges.i, self.edges.j, np.arange(n)
        found = np.zeros((d, n, d, n))
        for k in range(d):
            for m in range(k + 1):
                w = self.weights(k, m)
                block = found[k, :, m]
                block[j, i] = -w
                if m < k:
                    block[i, j] = -w
                degree = np.bincount(i, w, n) + np.bincount(j, w, n)
                block[at, at] = self.blocks[:, k, m] + degree
        return found.reshape(d * n, d * n)

    def _dense(self, g: Floats) -> Floats:
        matrix = self.matrix()
        diagonal = np.diagonal(matrix).copy()
        damping = DAMPING * float(diagonal.mean()) + TINY
        while np.isfinite(damping):
            np.fill_diagonal(matrix, diagonal + damping)
            factor, failed = dpotrf(matrix.T, lower=0, clean=0)  # the transpose is LAPACK's order
            if not failed:
                solution = dpotrs(factor, -g.T.ravel(), lower=0)[0]
                return np.asarray(solution.reshape(g.shape[::-1]).T)
            damping *= MORE
        return np.full_like(g, np.nan)

    def _sparse(self, g: Floats) -> Floats:
        """By a sparse factor, one d x d block an edge."""
        (n, d), i, j = g.shape, self.edges.i, self.edges.j
        cross = np.empty((len(i), d, d))
        for k in range(d):
            for m in range(d):
                cross[:, k, m] = -self.weights(k, m)
        rows, columns = np.concatenate([i, j, np.arange(n)]), np.concatenate([j, i, np.arange(n)])
        blocks = np.concatenate([cross, cross, self.diagonal()])
        order = np.argsort(rows, kind="stable")
        first = np.searchsorted(rows[order], np.arange(n + 1))
        matrix = bsr_array((blocks[order], columns[order], first), shape=(n * d, n * d)).tocsc()
        damping = DAMPING * float(matrix.diagonal().mean()) + TINY
        while np.isfinite(damping):
            try:
                factor = symmetric_factor(matrix + damping * eye_array(n * d, format="csc"))
                return np.asarray(factor.solve(-g.ravel()).reshape(n, d))
            except RuntimeError:  # exactly singular
                damping *= MORE
        return np.full_like(g, np.nan)

    def _iterative(self, g: Floats, tolerance: float) -> Floats:
        """Conjugate gradients, preconditioned with the diagonal blocks."""
        inverse = np.asarray(np.linalg.inv(self.diagonal()), np.float64)
        x, r = np.zeros_like(g), -g
        y = _times(inverse, r)
        p, old = y, float((r * y).sum())
        goal = tolerance * float(np.linalg.norm(g))
        for _ in range(LIMIT):
            hp = self.times(p)
            step = old / float((p * hp).sum())
            x, r = x + step * p, r - step * hp
            if np.linalg.norm(r) <= goal:
                break
            y = _times(inverse, r)
            new = float((r * y).sum())
            p, old = y + new / old * p, new
        return x

    def times(self, p: Floats) -> Floats:
        """The matrix by a vector (n, d)."""
        z = self.edges.differences(p)
        along = self.b * (self.unit * z).sum(1)
        z *= self.a[:, None]
        z -= along[:, None] * self.unit
        return _times(self.blocks, p) + self.edges.adjoint(z)

    def diagonal(self) -> Floats:
        """The diagonal blocks, (n, d, d), a little damped."""
        n, d = self.blocks.shape[:2]
        i, j = self.edges.i, self.edges.j
        found = self.blocks.copy()
        for k in range(d):
            for m in range(k + 1):
                w = self.weights(k, m)
                degree = np.bincount(i, w, n) + np.bincount(j, w, n)
                found[:, k, m] += degree
                if m < k:
                    found[:, m, k] += degree
        mean = float(np.trace(found, axis1=1, axis2=2).mean()) / d
        return np.asarray(found + DAMPING * mean * np.eye(d))


def _times(blocks: Floats, p: Floats) -> Floats:
    return np.asarray((blocks @ p[..., None])[..., 0])
