"""From users' jets to the likelihood's parameters: on one level, or with clusters above the users.

The parameters psi are beta, the coefficients that are free; tau of the users, their shape if the
family has one; and tau of the clusters. A cluster's model is theta_j = start + M beta + A L(tau)
v_j with v_j standard normal. Joint over the cluster and its users Laplace's approximation is

    A_j(theta_j) - |v_j|^2/2 + B_j - log|I + L'K_j L|/2    where the first two are largest in v_j,

with A_j = sum h_i(u^_i), B_j = -sum log|H_i|/2, and K_j the curvature of A_j, by which the arrow of
second derivatives is complete: the same as that of all effects at once. Users send jets of A, B and
K at a theta_j; the server takes them for the functions, and so finds v_j on the way. Of A_j's third
derivatives it knows K_j's slope alone: the gradient is exact, the Hessian nearly so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from corsage.core.arrays import Floats

NODES = 15
"""Nodes of the quadrature: as many as lme4's nAGQ=15."""


def functions_of(around: int) -> int:
    """Functions of which users send jets, if clusters differ in so many directions."""
    return 2 + around * (around + 1) // 2 if around else 1


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
    above : of the clusters' roots in these directions (p, c, s).
    shaped : whether there is a shape.
    """

    matrix: Floats
    start: Floats
    basis: Floats
    around: Floats
    above: Floats
    shaped: bool

    @property
    def ends(self) -> tuple[int, int, int]:
        """Ends in psi: of the coefficients, of the users' numbers, and of all."""
        free = self.matrix.shape[1]
        own = free + len(self.basis) + self.shaped
        return free, own, own + len(self.above)

    def theta(self, psi: Floats) -> Floats:
        """The model of all."""
        return np.asarray(self.matrix @ psi[: self.ends[0]] + self.start)

    def tau(self, psi: Floats) -> Floats:
        """The users' numbers, the shape last."""
        return psi[self.ends[0] : self.ends[1]]

    def root(self, psi: Floats) -> Floats:
        """The root of the users' covariance (P, r)."""
        tau = psi[self.ends[0] : self.ends[0] + len(self.basis)]
        return np.asarray(np.einsum("kpr,k->pr", self.basis, tau))

    def above_root(self, psi: Floats) -> Floats:
        """The root of the clusters' covariance (P, s)."""
        return np.asarray(self.around @ np.einsum("kcs,k->cs", self.above, psi[self.ends[1] :]))

    def one_level(self, jets: Jets) -> Jets:
        """The same in psi, of one sum."""
        free, own, _ = self.ends
        wide = np.zeros((jets.slope.shape[-1], own))
        d = len(self.start)
        wide[:d, :free], wide[d:, free:] = self.matrix, np.eye(own - free)
        return Jets(jets.value[0], jets.slope[0] @ wide, wide.T @ jets.bend[0] @ wide)
