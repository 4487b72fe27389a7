"""The coins of a run, for the clusters that are here now: what comes when, and how far steps go.

Lyu et al. 2022, Algorithms 1 and 2. All coins are drawn up front; only global steps (and the
refreshes of Algorithm 2) make clusters wait for each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from corsage.solvers.known_clusters.coins.flips import (
    Coins,
    Walk,
    count,
    deviations,
    expected_communications,
)
from corsage.solvers.known_clusters.coins.settings import Parameters, Rates, rates
from corsage.solvers.known_clusters.hierarchy import Hierarchy, alpha_of
from corsage.strategies.known_clusters.clusters.cohorts import Present
from corsage.strategies.known_clusters.clusters.strengths import Strengths
from corsage.strategies.known_clusters.coins.coin_keys import CoinSettings


@dataclass(frozen=True, eq=False)
class CoinSchedule:
    """The coins and the steps of the clusters that train now.

    Parameters
    ----------
    seed : the run's.
    present : the clusters.
    hierarchy : (2.1)'s clusters, gamma_i and alpha_j.
    settings : p_0, p_j, tau_j and eta, as they were fixed at the start.
    """

    seed: int
    present: Present
    hierarchy: Hierarchy
    settings: CoinSettings

    @cached_property
    def parameters(self) -> Parameters:
        """p_0, p_j, tau_j and eta of these clusters."""
        return self.settings.parameters(self.present.names)

    @cached_property
    def coins(self) -> Coins:
        """xi_0, and xi_j of these clusters."""
        p = tuple(self.parameters.p.tolist())
        return Coins(self.seed, self.settings.p0, p, tuple(self.present.names))

    @cached_property
    def rates(self) -> Rates:
        """A_i, B_i and c_i of every user, and the local step of every cluster."""
        return rates(self.hierarchy, self.parameters)

    @cached_property
    def cluster_rates(self) -> Rates:
        """A_j, B_j and c_j, where the users of a cluster have the same gamma."""
        return self.rates.of_clusters(self.hierarchy)

    def communications(self, iterations: int) -> list[tuple[str, str]]:
        """The rounds that the coins made, their expectation, and its standard deviation."""
        coins = self.coins
        actual, expected = count(coins, iterations), expected_communications(coins, iterations)
        spread = deviations(coins, iterations)

        def told(kind: str, place: Any) -> str:
            numbers = (np.asarray(found[kind])[place] for found in (actual, expected, spread))
            return "{:,.0f} (expected {:,.1f} ± {:.1f})".format(*map(float, numbers))

        rows = [("between clusters", told("between", ()))]
        for j, name in enumerate(coins.names):
            rows.append((f"within {name}", told("within", j)))
            rows.append((f"round trips of {name}", told("round-trips", j)))
        return rows


def hierarchy_of(present: Present, strengths: Strengths) -> Hierarchy:
    """(2.1)'s clusters, gamma_i and alpha_j of the users that train now, cohort by cohort."""
    number = {name: j for j, name in enumerate(present.names)}
    cohorts = present.cohorts
    sizes = [len(cohort.users) for cohort in cohorts]
    cluster = np.repeat([number[cohort.cluster] for cohort in cohorts], sizes)
    gamma = np.concatenate([strengths.gammas(cohort) for cohort in cohorts])
    totals = np.bincount(cluster, gamma, len(number))
    return Hierarchy(cluster, gamma, alpha_of(strengths.lambdas(present.names), totals))


@dataclass(frozen=True)
class Leg:
    """A part of a cluster's walk that takes one exchange.

    Parameters
    ----------
    to_centre : steps to the centre that come first; the server takes them.
    runs : what the users do then: (r, k, t), r steps to their centre and k local steps, the first
        of these in iteration t.
    """

    to_centre: int
    runs: tuple[tuple[int, int, int], ...] = ()

    @property
    def trips(self) -> int:
        """Runs of local steps."""
        return sum(k > 0 for _, k, _ in self.runs)


def legs(walk: Walk, first: int, whole: bool) -> list[Leg]:
    """A walk from iteration `first` on as legs: one, if a node hosts the `whole` cluster."""
    if not walk:
        return [Leg(0)]
    pieces = [walk] if whole else [(piece,) for piece in walk]
    found = []
    for piece in pieces:
        runs: list[tuple[int, int, int]] = []
        for r, k in piece:
            runs.append((r if runs else 0, k, first + r))
            first += r + k
        found.append(Leg(piece[0][0], tuple(runs)))
    return found
