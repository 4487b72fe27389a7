"""Sum-of-norms problems made of a caller's arguments, or one line about why they are none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from corsage.core.arrays import Floats
from corsage.core.errors import ConfigError, DataError
from corsage.solvers.convex_clustering.exact.certificate import Problem
from corsage.solvers.convex_clustering.exact.checks import number, points
from corsage.solvers.convex_clustering.exact.costs import Costs, LossCosts, PointCosts
from corsage.solvers.convex_clustering.exact.edges import Edges

if TYPE_CHECKING:
    from corsage.solvers.losses.convex import Losses


def costs_of(losses: Losses | Floats) -> Costs:
    """Points in any array, or losses."""
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
