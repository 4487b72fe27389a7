"""Douglas-Rachford splitting at the server: what it remembers, and its half of a round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.strategies.convex_clustering.graph import Moved
from corsage.strategies.convex_clustering.solver import (
    Facts,
    Problem,
    Rules,
    moved_edges,
    moved_users,
)

if TYPE_CHECKING:
    from corsage.solvers.convex_clustering.splitting import DrState

UNPULLED = 1e-7
"""rho as a share of the curvature where nothing pulls: proximal steps are then whole ones."""


@dataclass(frozen=True, eq=False)
class Splitting:
    """Douglas-Rachford splitting, `dr` (solvers/convex_clustering/splitting.py).

    Parameters
    ----------
    s, y : of the users (N, d); y are their models.
    mu : duals of the edges (E, d), lambda included.
    rho : the weight of the proximal steps.
    """

    s: Floats
    y: Floats
    mu: Floats
    rho: float

    @classmethod
    def begin(cls, problem: Problem, d: int, facts: Facts, rules: Rules) -> Splitting:
        """All are 0; d numbers in a model."""
        from corsage.solvers.convex_clustering import splitting

        edges = problem.edges
        pull = problem.lam * (2 * float(edges.w.sum()) / max(edges.n, 1))
        rho = rules.rho
        if rho is None and pull == 0:
            rho = UNPULLED * facts.curvature
        if rho is None:
            rho = splitting.start_rho(facts.curvature, facts.slope, pull)
        start = splitting.DrState.zeros(edges.n, edges, d)
        return cls(start.s, start.y, start.duals, rho)

    @property
    def models(self) -> Floats:
        """The users' models: Y (N, d), whose rows are exactly equal where users are fused."""
        return self.y

    def request(self, problem: Problem, rules: Rules, rows: Ints) -> tuple[Floats, Floats]:
        """p_i = 2 y_i - s_i, kappa_i = rho."""
        from corsage.solvers.convex_clustering import splitting

        return splitting.request(self._state, rows), np.full(len(rows), self.rho)

    def after(
        self, problem: Problem, rules: Rules, rows: Ints, x: Floats, number: int
    ) -> tuple[Splitting, str]:
        """s_i += relax (x_i - y_i), then Y = prox of (lambda/rho) Omega at S."""
        from corsage.solvers.convex_clustering import splitting

        edges, lam = problem.edges, problem.lam
        found = splitting.update(self._state, rows, x, edges, lam, self.rho, rules.relax)
        return Splitting(found.s, found.y, found.duals, self.rho), ""

    def moved(self, rows: Moved) -> Splitting:
        """The state of the users that are there now; a new one begins at the mean."""
        s, y = moved_users(self.s, rows.users), moved_users(self.y, rows.users)
        return Splitting(s, y, moved_edges(self.mu, rows.edges), self.rho)

    def by_columns(self) -> Splitting:
        """The same numbers, those of the edges column by column, which is faster."""
        return replace(self, mu=np.asfortranarray(self.mu))

    @property
    def _state(self) -> DrState:
        from corsage.solvers.convex_clustering.splitting import DrState

        return DrState(self.s, self.y, self.mu)
