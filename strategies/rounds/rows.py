"""What a server knows of each user: arrays of the state with one row a user.

The rows are in the order of `state.scalars["users"]`, which only grows: a user that leaves keeps
its row, one that comes later gets the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corsage.core.replies import Outcome
from corsage.strategies.rounds.state import State

Weights = NDArray[np.float64]


def open_ledger(state: State, users: Sequence[str], row: NDArray[Any]) -> NDArray[Any]:
    """Note the users; the rows (users, ...) that they begin with, all the same."""
    state.scalars["users"] = list(users)
    return np.repeat(row[None], len(users), axis=0)


def places(state: State, users: Sequence[str]) -> list[int]:
    """The numbers of the users' rows, -1 for users that have none."""
    place = {user: i for i, user in enumerate(state.scalars["users"])}
    return [place.get(user, -1) for user in users]


def enter(
    state: State, rows: NDArray[Any], users: Sequence[str], new: NDArray[Any], row: NDArray[Any]
) -> NDArray[Any]:
    """The rows with those of `users` replaced by `new`; `row` is what a missing one began as."""
    absent = [user for user, at in zip(users, places(state, users), strict=True) if at < 0]
    if absent:
        state.scalars["users"] = [*state.scalars["users"], *absent]
        rows = np.concatenate([rows, np.repeat(row[None], len(absent), axis=0)])
    rows[places(state, users)] = new
    return rows


def user_weights(outcome: Outcome, weighting: str) -> Weights:
    """The users' weights in an average, by the key `weighting`."""
    if weighting == "examples":
        return outcome.metrics["num-examples"]
    return np.ones(len(outcome.users))
