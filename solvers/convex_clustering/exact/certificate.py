"""The duality gap: an upper bound on how far a point of the sum-of-norms problem is from optimal.

P(X) = sum_i f_i(x_i) + lam sum_{(i,j) in E} w_ij |x_i - x_j|. For any antisymmetric mu with
|mu_ij| <= lam w_ij and v_i = sum_j mu_ij,

    gap = sum_i [f_i(x_i) + <v_i, x_i> - min over x of f_i(x) + <v_i, x>]
        + sum_{i<j} [lam w_ij |x_i - x_j| - <mu_ij, x_i - x_j>]  >=  P(X) - min P.

Both sums have no negative term. In a federation the server sends v_i, and a user returns the two
floats of `user_terms`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from corsage.core.arrays import Floats
from corsage.solvers.convex_clustering.exact.costs import Costs
from corsage.solvers.convex_clustering.exact.edges import Edges, norms

SHRUNK = (1e-12, 1e-11, 1e-10, 1e-9, 1e-8)
"""By how much duals are shrunk, at most, for a user with steep sides to have a minimum."""
ROUNDING = 1e-16


def feasible(mu: Floats, radius: Floats) -> Floats:
    """Duals (E, d) on the edges i < j, cut to |mu_e| <= radius_e = lam w_e."""
    size = norms(mu)
    share = np.divide(radius, size, out=np.ones_like(size), where=size > radius)
    return np.asarray(mu * share[:, None])


def edge_terms(z: Floats, mu: Floats, radius: Floats) -> Floats:
    """lam w_e |z_e| - <mu_e, z_e> of z = B x, (E,); 0 where mu_e pulls as hard as it can."""
    return np.asarray(np.maximum(radius * norms(z) - (mu * z).sum(1), 0.0))


@dataclass(frozen=True)
class Problem:
    """The costs, the graph, and lam > 0."""

    costs: Costs
    edges: Edges
    lam: float

    @cached_property
    def radius(self) -> Floats:
        """lam w_e, (E,)."""
        return self.lam * self.edges.w

    def value(self, x: Floats) -> float:
        """P(X)."""
        return float(self.costs.value(x).sum()) + self.penalty(x)

    def penalty(self, x: Floats) -> float:
        """lam Omega(X)."""
        return float((self.radius * norms(self.edges.differences(x))).sum())

    def gap(self, x: Floats, mu: Floats) -> float:
        """The bound on P(X) - min P by feasible duals; infinite where a user has no minimum."""
        pulls = edge_terms(self.edges.differences(x), mu, self.radius)
        return float(self.costs.slack(x, self.edges.adjoint(mu)).sum() + pulls.sum())

    def certificate(self, x: Floats, mu: Floats) -> tuple[Floats, float]:
        """Duals and their gap: mu, or a little less of it.

        A user on a linear side of f_i balances a v_i on the border of those with a minimum, which
        rounding may cross.
        """
        gap = self.gap(x, mu)
        for share in SHRUNK:
            if np.isfinite(gap):
                break
            gap = self.gap(x, less := (1 - share) * mu)
            if np.isfinite(gap):
                mu = less
        return mu, gap

    def relative(self, gap: float, x: Floats) -> float:
        """The gap as a share of sum |f_i(x_i)| + penalty, which is P(X) if no f_i is negative.

        What is 0 but for rounding counts as that part of the costs at 0.
        """
        size = float(np.abs(self.costs.value(x)).sum()) + self.penalty(x)
        least = ROUNDING * float(np.abs(self._at_zero).sum())
        return gap / max(size, least, np.finfo(np.float64).tiny)

    @cached_property
    def _at_zero(self) -> Floats:
        return self.costs.value(np.zeros((self.costs.n, self.costs.d)))
