"""Newton's method for sum f_i(x_i) + a function of the differences B x.

Both sums have thousands of terms with kinks in their slopes. With one step length for all, the
first kink on anybody's way would stop everybody; so where a step fails, those terms that grew more
than their models said get more curvature, and the step is computed anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from corsage.core.arrays import Floats
from corsage.solvers.convex_clustering.exact.costs import Smooth
from corsage.solvers.convex_clustering.exact.edge_functions import TINY, Term
from corsage.solvers.convex_clustering.exact.edges import Edges, norms
from corsage.solvers.convex_clustering.exact.newton_system import System

EPS = float(np.finfo(np.float64).eps)
ARMIJO = 1e-4
LONG, SHORT = 0.25, 1e-10
"""Step lengths down to which a step is kept, and at which the method ends."""
ANEW = 4
"""Times that a step is computed anew."""
FADE = 0.1
"""The share of the additional curvature that is left after a step."""
DAMPING = 1e-3
"""Added to the diagonal of H_i times |g_i|/(1 + |x_i|), so that a step is not endless."""
FORCING = 1e-2
"""The residual of a Newton system, as a share of |g|; it falls with |g|."""


@dataclass(frozen=True)
class Place:
    """Models x (n, d), their differences z (E, d), the f_i (n,) and the function of z there."""

    x: Floats
    z: Floats
    own: Floats
    term: Term

    @cached_property
    def total(self) -> float:
        """The function that is minimised."""
        return float(self.own.sum()) + float(self.term.values.sum())

    @cached_property
    def noise(self) -> float:
        """The rounding error of the total."""
        return 4 * EPS * float(np.abs(self.own).sum() + np.abs(self.term.values).sum())


Enough = Callable[[Place, Floats, Floats], bool]
"""True if a place with that gradient (n, d) and those Hessians of the f_i (n, d, d) will do."""


@dataclass
class Caution:
    """Curvature beyond the Hessian, of users and edges whose kinks a step went across.

    Parameters
    ----------
    user : added to the diagonal of H_i, (n,).
    edge : the share of b_e that is left out, (E,); without b_e the model is above the term.
    """

    user: Floats
    edge: Floats

    def system(self, here: Place, gradient: Floats, blocks: Floats, edges: Edges) -> System:
        """The Newton system with it, and a trace of damping: a user's curvature may be 0."""
        term = here.term
        more = self.user + DAMPING * norms(gradient) / (1 + norms(here.x))
        blocks = blocks + more[:, None, None] * np.eye(blocks.shape[1])
        return System(blocks, edges, term.a, term.b * (1 - self.edge), term.unit)

    def learn(self, here: Place, there: Place, pull: Floats, blocks: Floats) -> None:
        """As much as the terms showed on the way: what they grew by beyond slope and model."""
        dx, dz, term = there.x - here.x, there.z - here.z, here.term
        model = (dx * (blocks @ dx[..., None])[..., 0]).sum(1) / 2
        more = there.own - here.own - (pull * dx).sum(1) - model
        self.user = np.maximum(self.user, 2 * more / np.maximum(np.square(dx).sum(1), TINY))
        along = term.b * np.square((term.unit * dz).sum(1)) / 2
        model = term.a * np.square(dz).sum(1) / 2 - along
        more = there.term.values - here.term.values - (term.slope * dz).sum(1) - model
        share = np.divide(more, along, out=np.zeros_like(more), where=along > TINY)
        self.edge = np.maximum(self.edge, np.clip(share, 0.0, 1.0))

    def fade(self) -> None:
        """After a step."""
        self.user, self.edge = FADE * self.user, FADE * self.edge


@dataclass(frozen=True)
class Newton:
    """The method for given costs, graph, and function of the differences."""

    costs: Smooth
    edges: Edges
    term: Callable[[Floats], Term]

    def at(self, x: Floats, z: Floats) -> Place:
        """A place."""
        return Place(x, z, self.costs.value(x), self.term(z))

    def run(
        self, x: Floats, enough: Enough, limit: int, shortest: float = SHORT
    ) -> tuple[Place, int]:
        """The place that at most `limit` steps from x lead to, and how many were taken.

        It ends when it is enough, or steps get too short.
        """
        here = self.at(x, self.edges.differences(x))
        caution, first = Caution(np.zeros(self.costs.n), np.zeros(len(self.edges))), 0.0
        for number in range(limit + 1):
            pull = self.costs.gradient(here.x)
            gradient = pull + self.edges.adjoint(here.term.slope)
            blocks = self.costs.hessian(here.x)
            if enough(here, gradient, blocks) or number == limit:
                break
            size = float(np.linalg.norm(gradient))
            first = first or size
            accuracy = min(FORCING, size / first)
            slopes = (pull, gradient, blocks)
            there = self._step(here, slopes, caution, accuracy, shortest)
            if there is None:
                break
            here = there
            caution.fade()
        return here, number

    def _step(
        self,
        here: Place,
        slopes: tuple[Floats, Floats, Floats],
        caution: Caution,
        accuracy: float,
        shortest: float,
    ) -> Place | None:
        """The next place; None if nothing is gained. `slopes`: f's gradient, the whole, H_i."""
        pull, gradient, blocks = slopes
        for attempt in range(ANEW + 1):
            dx = caution.system(here, gradient, blocks, self.edges).solve(gradient, accuracy)
            if not np.isfinite(dx).all():
                break
            dz, fall = self.edges.differences(dx), float((gradient * dx).sum())
            full = there = self.at(here.x + dx, here.z + dz)
            length, least = 1.0, LONG if attempt < ANEW else shortest
            while there.total > here.total + ARMIJO * length * fall + here.noise:
                length /= 2
                if length < least:
                    break
                there = self.at(here.x + length * dx, here.z + length * dz)
            else:
                return there
            caution.learn(here, full, pull, blocks)
        return None
