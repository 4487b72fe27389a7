"""The sum-of-norms problem of Armacki et al. 2022, solved exactly, with a proof of optimality.

    P(X) = sum_i f_i(x_i) + lam sum_{(i,j) in E} w_ij |x_i - x_j|

With points, f_i = 1/2 |x - a_i|^2, this is convex clustering. `fit` solves one problem, `path` many
lam in a row, `prox` is the proximal operator of the penalty. All sums are as above: lam is twice
the paper's of (14), and 2 N times that of (3) and (5).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Floats, Ints
from corsage.core.errors import ConfigError, DataError, ModelError
from corsage.solvers.convex_clustering.exact.certificate import Problem, edge_terms, feasible
from corsage.solvers.convex_clustering.exact.costs import Costs, LossCosts, PointCosts, user_terms
from corsage.solvers.convex_clustering.exact.edges import Edges, norms
from corsage.solvers.convex_clustering.exact.finish import Found, met
from corsage.solvers.convex_clustering.exact.fusion import reduced
from corsage.solvers.convex_clustering.exact.newton_system import affordable
from corsage.solvers.convex_clustering.exact.numbers_given import (
    LARGEST_NUMBER,
    number,
    points,
    shaped,
)
from corsage.solvers.convex_clustering.exact.solved import Beginning, Rising, solved

if TYPE_CHECKING:
    from corsage.solvers.losses.convex import Losses

__all__ = [
    "Edges",
    "Solution",
    "edge_terms",
    "feasible",
    "fit",
    "gap",
    "path",
    "prox",
    "user_terms",
]

TOLERANCE, TIGHT = 1e-8, 1e-12
TOUCH = 1e-10
"""Duals shorter than their bound by more than this share belong to fused edges."""


@dataclass(frozen=True)
class Solution:
    """The result of `fit`, and how good it is.

    Parameters
    ----------
    x : the users' models, (N, d); rows of fused users are equal.
    mu : the duals of the edges, (E, d).
    lam : that of the problem.
    value : P(x).
    gap : at most so much is P(x) above the minimum; infinite if nothing is known.
    relative_gap : the gap as a share of sum |f_i(x_i)| + penalty.
    certified : the relative gap is within the tolerance.
    iterations : Newton steps for all users together.
    partition_certified : the clusters are proved to be those of the minimum; None if that was not
        asked (`proved` of partition.py does): the gap alone does not say so.
    """

    x: Floats
    mu: Floats
    lam: float
    value: float
    gap: float
    relative_gap: float
    certified: bool
    iterations: int
    partition_certified: bool | None = None

    @property
    def labels(self) -> Ints:
        """Users with equal rows of x have one number, 0 that of the first user, (N,)."""
        _, first, inverse = np.unique(self.x, axis=0, return_index=True, return_inverse=True)
        rank = np.argsort(np.argsort(first))
        return np.asarray(rank[inverse.ravel()], np.int64)


def fit(
    losses: Losses | PointCosts | Floats,
    lam: float,
    weights: Edges | None = None,
    start: Solution | None = None,
    tolerance: float = TOLERANCE,
) -> Solution:
    """Minimise P.

    Parameters
    ----------
    losses : the f_i, in float64, or points a (N, d) for f_i = 1/2 |x - a_i|^2.
    lam : the weight of the penalty, at least 0; with inf all users of a piece of the graph share a
        model.
    weights : the graph; None for all pairs with w = 1.
    start : a solution for another lam, or other losses, on the same graph.
    tolerance : the relative gap to reach. If it is not, the solution is not `certified`.
    """
    costs = costs_of(losses)
    problem = problem_of(costs, lam, weights)
    edges, tolerance = problem.edges, number(tolerance, "tolerance")
    if start is not None and not _fits(start, costs, edges):
        raise DataError("sum of norms: the start is of another graph or model; leave it out.")
    if problem.lam == 0 or not len(edges):
        return _solution(problem, _alone(problem), tolerance)
    if np.isinf(problem.lam):
        return _together(problem, tolerance)
    found = solved(problem, _beginning(problem, start), tolerance)
    return _solution(problem, met(problem, found, tolerance), tolerance)


def path(
    losses: Losses | Floats,
    lams: Iterable[float],
    weights: Edges | None = None,
    tolerance: float = TOLERANCE,
) -> Iterator[Solution]:
    """The solutions for one lam after the other, each started from one for another lam.

    Of points on graphs of few edges all are found before the first is given: from the smallest lam
    up, clusters only grow.
    """
    costs = costs_of(losses)
    lams = [number(lam, "lambda") for lam in listed(lams)]
    edges = problem_of(costs, 0.0, weights).edges
    if isinstance(costs, PointCosts) and affordable(edges, costs.d):
        yield from _upwards(costs, lams, edges, number(tolerance, "tolerance"))
        return
    found: Solution | None = None
    for lam in lams:
        found = fit(losses, lam, edges, found, tolerance)
        yield found


def _upwards(
    costs: PointCosts, lams: list[float], edges: Edges, tolerance: float
) -> list[Solution]:
    """From the smallest lam to the largest; in the order that was asked for."""
    solutions: dict[float, Solution] = {}
    rising = Rising(costs, edges, tolerance)
    for lam in sorted(set(lams)):
        if lam == 0 or np.isinf(lam) or not len(edges):
            solutions[lam] = fit(costs.a, lam, edges, tolerance=tolerance)
        else:
            problem = Problem(costs, edges, lam)
            found = met(problem, rising.to(lam), tolerance)
            solutions[lam] = _solution(problem, found, tolerance)
    return [solutions[lam] for lam in lams]


def prox(
    s: Floats, lam: float, edges: Edges, warm: Floats | None = None, tolerance: float = TIGHT
) -> tuple[Floats, Floats]:
    """argmin over Y of 1/2 |Y - S|^2 + lam Omega(Y), exactly fused, and its duals mu (E, d).

    Y = S - B' mu. `warm` are the duals of a similar S, for the same lam and edges.
    """
    costs = PointCosts(points(s))
    problem = problem_of(costs, lam, edges)
    if problem.lam == 0 or not len(edges):
        return costs.a.copy(), np.zeros((len(edges), costs.d))
    if np.isinf(problem.lam):
        endless = _together(problem, tolerance)
        return endless.x, endless.mu
    if warm is None:
        begin = Beginning.cold(problem)
    else:
        warm = shaped(warm, "duals", (len(edges), costs.d))
        mu = np.asfortranarray(feasible(np.asfortranarray(warm), problem.radius))
        same = edges.components(norms(mu) < (1 - TOUCH) * problem.radius)
        begin = Beginning(s - edges.adjoint(mu), mu, [same, edges.components()], warm=True)
    found = solved(problem, begin, tolerance)
    if not problem.relative(found.gap, found.x) <= tolerance:
        raise ModelError(f"prox: the gap is {found.gap:.1e}; raise the tolerance {tolerance:g}.")
    return found.x, found.mu


def gap(
    losses: Losses | Floats, x: Floats, mu: Floats, lam: float, weights: Edges | None = None
) -> float:
    """At most so much is P(X) above its minimum, whatever X (N, d) and mu (E, d) on i < j are.

    mu is cut to |mu_ij| <= lam w_ij first. Infinite where a user has no minimum.
    """
    costs = costs_of(losses)
    problem = problem_of(costs, number(lam, "lambda", most=LARGEST_NUMBER), weights)
    x = shaped(x, "models", (costs.n, costs.d))
    mu = shaped(mu, "duals", (len(problem.edges), costs.d))
    return problem.gap(x, feasible(mu, problem.radius))


def _beginning(problem: Problem, start: Solution | None) -> Beginning:
    """At the solution for another lam, or at nothing."""
    if start is None:
        return Beginning.cold(problem)
    edges = problem.edges
    mu = feasible(start.mu * (problem.lam / start.lam if start.lam > 0 else 1.0), problem.radius)
    same = edges.components(norms(edges.differences(start.x)) == 0)
    return Beginning(start.x, mu, [same, edges.components()], warm=True)


def _fits(start: object, costs: Costs, edges: Edges) -> bool:
    """True if a solution is one for that many users, parameters and edges."""
    shapes = (costs.n, costs.d), (len(edges), costs.d)
    return isinstance(start, Solution) and (start.x.shape, start.mu.shape) == shapes


def _together(problem: Problem, tolerance: float) -> Solution:
    """With an endless penalty: one model for every piece of the graph, and any flow inside."""
    costs, edges = problem.costs, problem.edges
    found = reduced(Problem(costs, edges, 1.0), np.nan_to_num(costs.minimise()), edges.components())
    if found is None:
        raise ModelError("lambda=inf: no model is best for all users; set ridge.")
    flow = edges.carry(-costs.gradient(found.x))
    least = float((norms(flow) / edges.w).max(initial=1.0))  # any lambda from here on is endless
    enough = Problem(costs, edges, least)
    mu, gap = enough.certificate(found.x, flow)
    return replace(_solution(enough, Found(found.x, mu, gap, 0), tolerance), lam=problem.lam)


def _alone(problem: Problem) -> Found:
    """Without a penalty: every user's own minimiser."""
    x = problem.costs.minimise()
    missing = np.flatnonzero(~np.isfinite(x).all(1))
    if missing.size:
        if problem.lam > 0:
            raise ModelError("no model is best for users who share one; set ridge.")
        raise ModelError(f"user {missing[0]}: no local model is best; set ridge, or lambda > 0.")
    mu = np.zeros((len(problem.edges), problem.costs.d))
    return Found(x, mu, problem.gap(x, mu), 0)


def _solution(problem: Problem, found: Found, tolerance: float) -> Solution:
    relative = problem.relative(found.gap, found.x)
    return Solution(
        found.x,
        found.mu,
        problem.lam,
        problem.value(found.x),
        found.gap,
        relative,
        relative <= tolerance,
        found.steps,
    )


# Problems made of a caller's arguments, or one line about why they are none.


def costs_of(losses: Losses | PointCosts | Floats) -> Costs:
    """Points in any array, with weights, or losses."""
    if isinstance(losses, PointCosts):
        return losses
    if isinstance(losses, np.ndarray | list | tuple):
        return PointCosts(points(losses))
    if not hasattr(losses, "minimise"):
        name = type(losses).__name__
        raise DataError(f"sum of norms: points (N, d) or losses are needed, not {name}.")
    costs = LossCosts(losses)
    strange = np.flatnonzero(~np.isfinite(costs.value(np.zeros((costs.n, costs.d)))))
    if strange.size:
        raise DataError(f"sum of norms: the loss of user {strange[0]} at 0 is not finite.")
    return costs


def problem_of(costs: Costs, lam: float, edges: Edges | None) -> Problem:
    """Numbers that make a problem."""
    lam = number(lam, "lambda")
    if edges is None:
        edges = Edges.all_pairs(costs.n)
    if not isinstance(edges, Edges):
        raise DataError(f"sum of norms: the graph must be Edges, not {type(edges).__name__}.")
    if edges.n != costs.n:
        raise DataError(f"sum of norms: {costs.n} users, but a graph of {edges.n}.")
    return Problem(costs, edges, lam)


def listed(lams: Iterable[float]) -> list[float]:
    """Many lam."""
    if not isinstance(lams, Iterable):
        raise ConfigError(f"lambdas={lams}: they must be a list.")
    return list(lams)
