"""The duality gap of the models, an upper bound on their distance from optimal: two floats a user.

See solvers/convex_clustering/exact/certificate.py for the formula.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from corsage.core.arrays import Floats
from corsage.core.messages.replies import Replies
from corsage.solvers.convex_clustering.newton import Newton
from corsage.strategies.convex_clustering.graph import Graph
from corsage.strategies.convex_clustering.questions import Questions
from corsage.strategies.rounds.turns import Script


class Solver(Protocol):
    """Models, and duals of the edges."""

    @property
    def models(self) -> Floats:
        """X (N, d)."""

    @property
    def mu(self) -> Floats:
        """(E, d)."""


@dataclass(frozen=True)
class Certificate:
    """A certificate of the models after a round.

    Parameters
    ----------
    round : the round.
    value : P(X); None if not all users answered.
    gap : at most so much is P(X) above its minimum; None if nothing is known: not all users
        answered, or one has no best model under its duals.
    relative : the gap as a share of sum |f_i(x_i)| + penalty.
    nearby : the gap holds against models at most 100 times as far away: somebody has no best one.
    """

    round: int
    value: float | None = None
    gap: float | None = None
    relative: float | None = None
    nearby: bool = False

    def within(self, tolerance: float) -> bool:
        """True if the models are known to be that good."""
        return self.relative is not None and self.relative <= tolerance


def of_newton(solver: Newton, number: int) -> Certificate | None:
    """The certificate that a step of Newton's method comes with; None if not all users answered."""
    if not np.isfinite(solver.objective):
        return None
    if not np.isfinite(solver.gap):
        return Certificate(number, solver.objective)
    gap, tiny = max(solver.gap, 0.0), np.finfo(np.float64).tiny
    nearby = solver.near < solver.objective - solver.lower
    return Certificate(number, solver.objective, gap, gap / max(solver.size, tiny), nearby)


def certify(
    questions: Questions, graph: Graph, lam: float, solver: Solver, number: int
) -> Script[Certificate]:
    """The certificate after round `number`: a user gets x_i and v_i = sum_j mu_ij."""
    from corsage.solvers.convex_clustering.exact.certificate import feasible

    x, edges = solver.models, graph.edges
    mu = feasible(solver.mu, lam * edges.w)
    rows = {"x": x, "v": edges.adjoint(mu)}
    replies = yield from questions.ask(graph.users, "slack", rows, strict=False, number=number)
    if len(replies.users) < len(x):
        return Certificate(number)
    return with_gap(replies, graph, lam, x, mu, number)


def with_gap(
    replies: Replies, graph: Graph, lam: float, x: Floats, mu: Floats, number: int
) -> Certificate:
    """The gap out of the users' slack and the edges'; mu are feasible duals."""
    from corsage.solvers.convex_clustering.exact.certificate import edge_terms
    from corsage.solvers.convex_clustering.exact.edges import norms

    metrics, radius, apart = replies.metrics, lam * graph.edges.w, graph.edges.differences(x)
    slack = np.maximum(metrics["at_x"] - metrics["least"], 0.0)
    gap = float(slack.sum() + edge_terms(apart, mu, radius).sum())
    penalty = float((radius * norms(apart)).sum())
    value = float(metrics["value"].sum()) + penalty
    if not (metrics["found"] > 0).all():
        return Certificate(number, value)
    size = float(np.abs(metrics["value"]).sum()) + penalty
    return Certificate(number, value, gap, gap / max(size, np.finfo(np.float64).tiny))
