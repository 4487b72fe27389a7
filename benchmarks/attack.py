"""Bad users: some clients send their updates many times over, and turned round.

Nothing of it is in the house: what the clients of bad users would send is changed where they
return it, before their node sees it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from corsage.clients.base import Client, Got, Sent
from corsage.core.arrays import Array, Arrays
from corsage.core.seeding import generator


def drawn(users: Sequence[str], share: float, seed: int) -> set[str]:
    """So large a share of the users, by seed."""
    order = generator(seed, "bad users").permutation(len(users))
    return {users[i] for i in order[: round(share * len(users))]}


@contextmanager
def attacked(bad: set[str], factor: float) -> Iterator[None]:
    """While it lasts, bad users send what came to them plus `factor` times their update.

    An array that did not come under the same name is a change, and sent `factor` times itself.
    """
    honest = Client.respond

    def respond(self: Client[Any], got: Got) -> Sent:
        sent, own = honest(self, got), np.array([user in bad for user in self.users])
        mean, rows = turned(sent.mean, got, own, factor), turned(sent.rows, got, own, factor)
        return replace(sent, mean=mean, rows=rows)

    Client.respond = respond  # type: ignore[method-assign]
    try:
        yield
    finally:
        Client.respond = honest  # type: ignore[method-assign]


def turned(arrays: Arrays, got: Got, bad: Array, factor: float) -> Arrays:
    """The arrays, one row a user, with those of bad users changed."""
    found = Arrays()
    for name, rows in arrays.items():
        start = got.rows.get(name, got.shared.get(name, np.zeros_like(rows[0])))
        worse = (start + factor * (rows - start)).astype(rows.dtype)
        found[name] = np.where(bad.reshape(-1, *[1] * (rows.ndim - 1)), worse, rows)
    return found
