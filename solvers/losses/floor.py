"""A floor under how few records a number that is sent may be of: no record of high leverage.

A record can be read exactly from Z'Z if and only if its leverage z_r (Z'Z)^+ z_r' among the rows of
Z is 1: then some combination of the sums is it alone. That is so of a word that one row has, or all
rows but one; of rows that are fewer than columns; and of what combinations of columns single out.
So a row whose leverage is above 1/m, with its label as a column, takes the mean inputs of a group
of m rows near it (microaggregation: Domingo-Ferrer, Mateo-Sanz 2002). Rows that are alike share
their leverage: it is 1/m at most, under any weights, of any loss. Labels stay as they are. Groups
are found from inputs alone, so what the mean of a group leaves out is error that does not bias a
linear model (Berkson 1950).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from corsage.core.arrays import Bools, Floats, Ints

NO_DIRECTION = 1e-9
"""A direction of so little of the largest is rounding."""
LABELLED = 0.95
"""The most leverage of a row with its label as a column: 1 is what one rare label has."""
SLACK = 1e-9
"""A leverage may be so far above the floor by rounding."""


class Floored(NamedTuple):
    """Rows of users of which none has much leverage.

    Parameters
    ----------
    x : their inputs (N, d).
    some : users who have enough rows; of the others none is to be sent (n,).
    averaged : how many rows of each have the mean inputs of a group (n,).
    """

    x: Floats
    some: Bools
    averaged: Ints


def of_users(x: Floats, y: Floats, sizes: Ints, parts: Ints, least: int) -> Floored:
    """The rows (N, d) of users, one after the other, none of which stands out in its part.

    Parameters
    ----------
    x, y : inputs, an intercept's 1 among them, and labels (N,) or (N, C).
    sizes : how many rows each user has.
    parts : the part that a row is in, of those of its user: sums are of whole parts.
    least : no row's leverage is above 1/least.
    """
    found, user = np.array(x, np.float64), np.repeat(np.arange(len(sizes)), sizes)
    y, averaged = y.reshape(len(x), -1), np.zeros(len(sizes), np.int64)
    _, cells = np.unique(np.stack([user, parts]), axis=1, return_inverse=True)
    order = np.argsort(cells, kind="stable")
    for rows in np.split(order, np.cumsum(np.bincount(cells))[:-1]):
        group = groups(found[rows], y[rows], least)
        found[rows] = means(found[rows], group)[group]
        size = np.bincount(group)
        averaged[user[rows[0]]] += size[size > 1].sum()
    return Floored(found, sizes >= least, averaged)


def groups(x: Floats, y: Floats, least: int) -> Ints:
    """The groups of rows (n, d) whose mean inputs no row stands out with; most are of one row."""
    group = np.arange(len(x))
    while len(x) >= least and (high := above(x, y, group, least)).size:
        group = joined(x, group, high, least)
    return group


def leverages(z: Floats) -> Floats:
    """The leverage of each row among all rows."""
    lengths = np.sqrt(np.square(z).sum(0))
    z = z[:, lengths > 0] / lengths[lengths > 0]
    if not z.size:
        return np.zeros(len(z))
    if len(z) > 2 * z.shape[1]:
        q, r = np.linalg.qr(z)
        u, s, _ = np.linalg.svd(r)
        u = q @ u
    else:
        u, s, _ = np.linalg.svd(z, full_matrices=False)
    return np.asarray(np.square(u[:, s > NO_DIRECTION * s[0]]).sum(1))


def above(x: Floats, y: Floats, group: Ints, least: int) -> Ints:
    """The groups of fewer rows than `least` with too much leverage a row, the highest first."""
    sizes = np.bincount(group)
    inputs, labels = (np.sqrt(sizes)[:, None] * means(part, group) for part in (x, y))
    found = leverages(inputs) / sizes
    told = leverages(np.concatenate([inputs, labels], axis=1)) / sizes
    high = (sizes < least) & ((found > 1 / least + SLACK) | (told > LABELLED))
    return np.flatnonzero(high)[np.argsort(-found[high], kind="stable")]


def means(x: Floats, group: Ints) -> Floats:
    """The mean of each group's rows; groups are numbered from 0 on."""
    order = np.argsort(group, kind="stable")
    sizes = np.bincount(group)
    found = np.add.reduceat(x[order], np.cumsum(sizes) - sizes, axis=0) / sizes[:, None]
    return np.asarray(found)


def joined(x: Floats, group: Ints, high: Ints, least: int) -> Ints:
    """The groups, numbered anew, after each of `high` has joined what is nearest to it.

    Near is what a mean leaves out the least of (Ward 1963), in units of the user's own deviations.
    """
    middle, sizes = means(x, group), np.bincount(group).astype(np.float64)
    spread = x.std(0)
    middle = middle[:, spread > 0] / spread[spread > 0]
    into = np.arange(len(sizes))
    for one in high:
        while 0 < sizes[one] < least:
            cost = np.square(middle - middle[one]).sum(1) * sizes / (sizes + sizes[one])
            cost[(sizes == 0) | (np.arange(len(sizes)) == one)] = np.inf
            other = int(np.argmin(cost))
            both = sizes[one] + sizes[other]
            middle[one] += (middle[other] - middle[one]) * sizes[other] / both
            sizes[one], sizes[other] = both, 0
            into[into == other] = one
    return np.unique(into[group], return_inverse=True)[1]
