"""Arrays with one row a user, in an order that only grows, and their sums by clusters.

A user that leaves keeps its row, one that comes later gets the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from corsage.core.arrays import Array, Floats, Floats32, Ints
from corsage.core.messages.replies import Replies
from corsage.core.messages.schema import capped

if TYPE_CHECKING:
    from corsage.strategies.rounds.job import Job


def places(known: Sequence[str], users: Sequence[str]) -> Ints:
    """The numbers of the users' rows, -1 for users that have none."""
    place = {user: row for row, user in enumerate(known)}
    return np.array([place.get(user, -1) for user in users], np.int64)


def enter(
    known: list[str], rows: Array, users: Sequence[str], new: Array, first: Array
) -> tuple[list[str], Array]:
    """The users and rows with those of `users` replaced by `new`; a row begins as `first`.

    What is given stays as it is: arrays of a checkpoint cannot be written to.
    """
    absent = [user for user in users if user not in set(known)]
    known = [*known, *absent]
    rows = np.concatenate([rows, np.repeat(first[None], len(absent), axis=0)])
    rows[places(known, users)] = new
    return known, rows


def user_weights(replies: Replies, weighting: str, most: float = 1.0) -> Floats:
    """The users' weights in an average, by the key `weighting`; none has more than its share."""
    if weighting == "examples":
        return capped(replies.metrics["num-examples"], most)
    return np.ones(len(replies.users))


def cluster_sums(
    rows: Floats32, labels: Sequence[int], weights: NDArray[np.float64], clusters: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weighted sums over the users of each cluster (clusters, P), and of their weights."""
    chosen = np.asarray(labels)[None] == np.arange(clusters)[:, None]
    each = np.where(chosen, weights, 0.0)
    return each @ rows.astype(np.float64), each.sum(axis=1)


def cluster_means(
    rows: Floats32, labels: Sequence[int], weights: NDArray[np.float64], empty: Floats32
) -> Floats32:
    """The mean over the users of each cluster; a cluster without users has its row of `empty`."""
    sums, total = cluster_sums(rows, labels, weights, len(empty))
    means = np.array(empty, np.float32)
    full = total > 0
    means[full] = sums[full] / total[full, None]
    return means


def share_of_all(job: Job, weight: float) -> np.float32:
    """The share of all users, by what they weigh, that users of this weight are."""
    members = [job.members.everybody[user] for user in job.members.users]
    by_examples = job.config.train.weighting == "examples"
    samples = np.array([member.train if by_examples else 1 for member in members], np.float64)
    return np.float32(weight / capped(samples, job.config.federation.max_share).sum())
