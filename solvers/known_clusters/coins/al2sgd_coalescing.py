"""Algorithm 2 of Lyu et al. 2022 with its aggregation steps run together, at the server alone.

Algorithm 2 renews its anchors x_i after an iteration with probability rho, which every user takes
part in; this and the global steps are what clusters wait for (`plan`).

Aggregation steps in a row need no message where gamma_i is the same in a cluster: the means of z_i,
y_i, x_i and nabla f_i(x_i) over a cluster move as if they were a user, so the
server steps on alone (`advance_means`) and notes the thbar_j and thbar on the way (`Missed`); users
catch up with them before their next local step. Where gamma_i differs, the server needs the users'
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from corsage.core.arrays import Array, Floats
from corsage.solvers.known_clusters.coins.flips import Coin, Coins, Stretch, stretch
from corsage.solvers.known_clusters.coins.katyusha import Momenta, Rows, Target, pull_step


def plan(coins: Coins, refresh: Coin, first: int, end: int | None) -> Stretch:
    """The stretch that begins at `first`, cut after the first iteration with a refresh."""
    part = stretch(coins, first, end)
    renewals = np.flatnonzero(refresh.at(part.first, part.last))
    if len(renewals):
        part = stretch(coins, first, first + int(renewals[0]) + 1)
    return replace(part, refresh=bool(len(renewals)))


# Rows that the server moves.


def advance(
    rows: Rows, settings: Momenta, steps: int, means: Callable[[Array], Target]
) -> tuple[Rows, list[Target]]:
    """Aggregation steps of rows that know their means of theta; those means one by one."""
    targets = []
    for _ in range(steps):
        theta = rows.theta(settings)
        targets.append(means(theta))
        rows = pull_step(rows, settings, theta, targets[-1])
    return rows, targets


def advance_means(
    rows: Rows, settings: Momenta, steps: int, weights: Array | None
) -> tuple[Rows, list[Target]]:
    """The same of clusters' means: global steps, given the middle's weights; else to centres."""
    return advance(
        rows, settings, steps, lambda theta: (theta, None if weights is None else weights @ theta)
    )


# What users have missed, and how they catch up.


@dataclass(frozen=True, eq=False)
class Missed:
    """Aggregation steps that the server took alone: the means that they went to.

    Parameters
    ----------
    means : (steps, 2, d) thbar_j and thbar; thbar is 0 in a step to the centre. There may be more
        rows than steps, so that several records are of one length.
    is_global : whether each step is global, or to the centre.
    """

    means: Floats
    is_global: list[bool]

    @classmethod
    def none(cls, d: int) -> Missed:
        """No step."""
        return cls(np.empty((0, 2, d)), [])

    def and_then(self, targets: Sequence[Target]) -> Missed:
        """These steps, and more."""
        if not targets:
            return self
        means = np.stack([[c, np.zeros_like(c) if m is None else m] for c, m in targets])
        kinds = [middle is not None for _, middle in targets]
        return Missed(np.concatenate([self.means, means]), [*self.is_global, *kinds])

    def padded(self, length: int) -> Floats:
        """`means` of so many rows."""
        return np.pad(self.means, ((0, length - len(self.means)), (0, 0), (0, 0)))

    @property
    def targets(self) -> list[Target]:
        """The means that each step went to."""
        return [
            (centre, middle if is_global else None)
            for (centre, middle), is_global in zip(self.means, self.is_global, strict=False)
        ]


def catch_up(rows: Rows, settings: Momenta, targets: Sequence[Target]) -> Rows:
    """Users of one cluster after the aggregation steps that went to these means."""
    for target in targets:
        rows = pull_step(rows, settings, rows.theta(settings), target)
    return rows
