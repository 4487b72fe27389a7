"""From users' jets to the likelihood's parameters: on one level, or with clusters above the users.

The parameters psi are beta, the coefficients that are free; tau of the users, their shape if the
family has one; and tau of each level above. A cluster's model is theta_j = theta + A L(tau) v_j
with v_j standard normal, theta = start + M beta or the model of the unit that the cluster is in.
Joint over the cluster and its users Laplace's approximation is

    A_j(theta_j) - |v_j|^2/2 + B_j - log|I + L'K_j L|/2    where the first two are largest in v_j,

with A_j = sum h_i(u^_i), B_j = -sum log|H_i|/2, and K_j the curvature of A_j, by which the arrow of
second derivatives is complete: the same as that of all effects at once. Users send jets of A, of
its slope G in the directions A, of B and K at a theta_j; the server takes them for the functions,
and so finds v_j on the way. The same four of a unit's clusters are the unit's: any number of levels
is integrated out so, one after the other. G's Hessian has the third derivatives of A_j that the
Hessian of a logarithm of a determinant needs: all is exact where v_j is at its best. L is a lower
triangular root of a covariance that is linear in tau (`layouts`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from corsage.core.arrays import Bools, Floats, Ints
from corsage.solvers.known_clusters.variances.shapes import DIAGONAL, ONE

NODES = 15
"""Nodes of the quadrature: as many as lme4's nAGQ=15."""
FIRST_DEVIATION, LEAST_START = 0.5, 0.3
"""Deviations, in standard units, where a search begins: at least so large, as 0 is stationary."""


def functions_of(around: int) -> int:
    """Functions of which users send jets, if clusters differ in so many directions."""
    return 2 + around + around * (around + 1) // 2 if around else 1


class Jets(NamedTuple):
    """The sums of users' jets (k, J), (k, J, m), (k, J, m, m), of clusters, or of all (k = 1)."""

    value: Floats
    slope: Floats
    bend: Floats


@dataclass(frozen=True)
class Design:
    """The way from parameters to what users are told.

    Parameters
    ----------
    matrix, start : theta = matrix beta + start: the free coefficients, in standard units (P, f).
    basis : of the users' roots (q, P, r).
    around : the directions in which clusters differ (P, c), none on one level.
    above : of the roots in these directions, level by level (p, c, c).
    shaped, bound : whether there is a shape, and whether it is held.
    """

    matrix: Floats
    start: Floats
    basis: Floats
    around: Floats
    above: list[Floats]
    shaped: bool
    bound: bool = False

    @property
    def free(self) -> int:
        """The number of free coefficients."""
        return int(self.matrix.shape[1])

    @property
    def own(self) -> int:
        """The end of the users' numbers in psi, the shape last."""
        return self.free + len(self.basis) + self.shaped

    @property
    def spans(self) -> list[slice]:
        """The places of the levels' numbers in psi, from the users up, the shape aside."""
        ends = np.cumsum([self.own, *map(len, self.above)]).tolist()
        users = slice(self.free, self.own - self.shaped)
        return [users, *(slice(*pair) for pair in pairwise(ends))]

    @property
    def dead(self) -> Bools:
        """The parameters that are held: those of variances that data do not tell, and a shape."""
        levels = [self.basis, np.full((int(self.shaped), 1, 1), not self.bound), *self.above]
        return np.concatenate([np.zeros(self.free, bool), *(~one.any((1, 2)) for one in levels)])

    def theta(self, psi: Floats) -> Floats:
        """The model of all."""
        return np.asarray(self.matrix @ psi[: self.free] + self.start)

    def centres(self, psi: Floats, effects: list[Floats], parents: list[Ints]) -> list[Floats]:
        """The models of the units of all levels, from the clusters up to that of all (k, d)."""
        found = [self.theta(psi)[None]]
        for level in range(len(effects), 0, -1):
            own = effects[level - 1] @ self.root(psi, level).T
            found.append(found[-1][parents[level - 1]] + own)
        return found[::-1]

    def tau(self, psi: Floats) -> Floats:
        """The users' numbers, the shape last."""
        return psi[self.free : self.own]

    def root(self, psi: Floats, level: int = 0) -> Floats:
        """The root of a level's covariance, the users' first (P, r)."""
        tau = psi[self.spans[level]]
        if not level:
            return np.asarray(np.einsum("kpr,k->pr", self.basis, tau))
        return np.asarray(self.around @ np.einsum("kcs,k->cs", self.above[level - 1], tau))

    def whole(self, jets: Jets) -> Jets:
        """The sum of all jets, which is of (theta, tau, ...), in psi."""
        free, d = self.free, len(self.start)
        wide = np.zeros((jets.slope.shape[-1], free + jets.slope.shape[-1] - d))
        wide[:d, :free], wide[d:, free:] = self.matrix, np.eye(len(wide) - d)
        return Jets(jets.value[0], jets.slope[0] @ wide, wide.T @ jets.bend[0] @ wide)

    def living(self, jets: Jets) -> Jets:
        """The same where no step leads along what is held; jets (...) in psi."""
        dead = self.dead
        free = np.where(dead, 0.0, 1.0)
        return Jets(
            jets.value, jets.slope * free, jets.bend * np.outer(free, free) - np.diag(1.0 - free)
        )


# Shapes of a covariance of r coefficients, as lower triangular roots that are linear in tau.


def layouts(kind: str, r: int, told: Floats | None = None) -> Floats:
    """The matrices (q, r, r) of which a root is the sum, each times its number.

    They are 0 where coefficients are not `told` (r,): these do not differ.
    """
    there = np.ones((r, r)) if told is None else np.outer(told, told)
    if kind == ONE:
        return np.asarray((np.eye(r) * there)[None])
    rows, columns = (np.arange(r),) * 2 if kind == DIAGONAL else np.tril_indices(r)
    found = np.zeros((len(rows), r, r))
    found[np.arange(len(rows)), rows, columns] = there[rows, columns]
    return found


def numbers_of(kind: str, root: Floats) -> Floats:
    """tau of a root that another shape found, none of whose deviations is 0."""
    found = root.copy()
    own = np.diag(found)
    np.fill_diagonal(found, np.where(np.abs(own) < LEAST_START, LEAST_START, own))
    if kind == ONE:
        return np.array([np.diag(found).mean()])
    return np.diag(found).copy() if kind == DIAGONAL else found[np.tril_indices(len(found))]
