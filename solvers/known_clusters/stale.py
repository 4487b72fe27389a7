"""Algorithms 1 and 2 of Lyu et al. 2022 with a middle of the newest centres that are there.

In the papers' algorithms a global step is a barrier. Here a stretch (coins.py) may begin without
the clusters that are still at work: the middle is then formed from the centres that they had when
they last took part, which are so many stretches old (their *age*). A cluster that was busy skips
the stretches it missed, coins and all, and takes part in the next one. With everybody in every
stretch this is the paper's algorithm.

What others see of a busy cluster is its centre before the *last* global step of the run that it
took part in: a state at an iteration whose coin was drawn after it, and so on average that of any
iteration. The centre after the run is nearer to the middle than a cluster is on average, the one
before it is further away; either would move the fixed point.

Why the fixed point is (2.1)'s for every staleness: a cluster's steps are those of its own coins,
which are fresh in every stretch it takes part in, so the mean of its steps is its part of the
gradient of (2.1) with the mean of the middle in it; ages appear nowhere. Why it is reached: local
steps shrink distances, and steps to centres and to the middle are convex combinations of models.
So with A_i + B_i <= 1, c_i <= 1 and local steps of at most 2/L_i no step makes the greatest
distance between two runs, over all users and ages and in the mean square, any greater; local steps
of strongly convex losses make it less (Bertsekas and Tsitsiklis 1989, section 6.3: contractions in
a maximum norm bear any bounded delay). eta of Theorem 3.5 fulfils all three (`bears_delays`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from corsage.core.arrays import Array, Bools
from corsage.solvers.known_clusters.coalescing import Affine, global_map, global_step
from corsage.solvers.known_clusters.hierarchy import Hierarchy
from corsage.solvers.known_clusters.katyusha import Momenta, Rows, Target, pull_step
from corsage.solvers.known_clusters.settings import Rates


def bears_delays(rates: Rates, smoothness: float) -> bool:
    """Whether no step of Algorithm 1 can push users apart, however old the middle's centres are."""
    pull = float((rates.middle + rates.centre).max(initial=0.0))
    return (
        pull <= 1
        and float(rates.within.max(initial=0.0)) <= 1
        and float(rates.local.max(initial=0.0)) * smoothness <= 2
    )


def partial_map(
    centres: Array,
    seen: Array,
    there: Bools,
    weights: Array,
    rates: tuple[Array, Array],
    steps: int,
) -> tuple[Affine, Array, Array]:
    """`steps` global steps of the clusters that are `there` (k,), the others' centres as `seen`.

    The maps of those that are there, all centres (k, d) afterwards, and what is seen of them by
    others from now on.
    """
    a, b = (np.where(there, rate, 0.0) for rate in rates)
    now = np.where(there[:, None], centres, seen)
    factor, shift, moved = global_map(now, weights, a, b, steps)
    last = global_map(now, weights, a, b, max(steps - 1, 0))[2]
    after = np.where(there[:, None], moved, centres)
    return Affine(factor, shift), after, last


def partial_steps(
    theta: Array, seen: Array, there: Bools, hierarchy: Hierarchy, rates: Rates, steps: int
) -> tuple[Array, Array]:
    """The same of users (n, d) that are `there` (n,): their models, and what is seen of them."""
    own = rates._replace(
        middle=np.where(there, rates.middle, 0.0), centre=np.where(there, rates.centre, 0.0)
    )
    now = np.where(there[:, None], theta, seen)
    last = now
    for _ in range(steps):
        last, now = now, global_step(now, hierarchy, own)
    return np.where(there[:, None], now, theta), last


def advance_some(
    rows: Rows,
    settings: Momenta,
    steps: int,
    means: Callable[[Array], Target],
    there: Bools,
    seen: Array,
) -> tuple[Rows, list[Target], Array]:
    """`steps` global steps of Algorithm 2 of the rows that are `there` (u,), others as `seen`.

    All rows, the means on the way, and what is seen of the rows' theta (u, d).
    """
    chosen, targets = np.flatnonzero(there), list[Target]()
    last = np.where(there[:, None], rows.theta(settings), seen)
    for _ in range(steps):
        last = np.where(there[:, None], rows.theta(settings), seen)
        centres, middle = means(last)
        targets.append((centres, middle))
        own = rows.pick(chosen)
        rows = rows.put(chosen, pull_step(own, settings, last[chosen], (centres[chosen], middle)))
    return rows, targets, last
