"""What a server knows of each user: arrays with one row a user, in an order that only grows.

A user that leaves keeps its row, one that comes later gets the last.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from corsage.core.arrays import Array, Floats, Ints
from corsage.core.messages.replies import Replies
from corsage.core.messages.schema import capped


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
