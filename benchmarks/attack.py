"""Bad users: what they send is changed, or the rows that they train on.

Nothing of it is in the house: what the clients of bad users would send is changed where they
return it, before their node sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from corsage.clients import client_class
from corsage.clients.base import Client, Got, Sent
from corsage.clients.parts.samples import Rows, Samples
from corsage.core.arrays import Array, Arrays
from corsage.core.seeding import generator

Lie = Callable[[str, Array, Array], Array]
"""What is sent under a name, out of the true values and of what came under that name."""
Forgery = Callable[[Array, Array], tuple[Array, Array]]
"""Training rows and labels, out of the true ones."""


def drawn(users: Sequence[str], share: float, seed: int) -> set[str]:
    """So large a share of the users, by seed."""
    order = generator(seed, "bad users").permutation(len(users))
    return {users[i] for i in order[: round(share * len(users))]}


def times(factor: float) -> Lie:
    """What came plus so many times the update; of an array that did not come, so many times it."""
    return lambda name, true, came: came + factor * (true - came)


@contextmanager
def attacked(bad: set[str], factor: float) -> Iterator[None]:
    """While it lasts, bad users send what came to them plus `factor` times their update."""
    with lying(Client, bad, times(factor)):
        yield


@contextmanager
def lying(cls: type[Client[Any]], bad: set[str], lie: Lie) -> Iterator[None]:
    """While it lasts, bad users of a class of clients send something else; a cohort if any is."""
    honest, own = cls.respond, vars(cls).get("respond")

    def respond(self: Client[Any], got: Got) -> Sent:
        sent, marks = honest(self, got), np.array([user in bad for user in self.users])
        marks = np.array([marks.any()]) if self.cohorts else marks
        if not marks.any():
            return sent
        mean, rows = (told(arrays, got, marks, lie) for arrays in (sent.mean, sent.rows))
        return replace(sent, mean=mean, rows=rows)

    cls.respond = respond  # type: ignore[method-assign]
    try:
        yield
    finally:
        if own is None:
            del cls.respond
        else:
            cls.respond = own  # type: ignore[method-assign]


def told(arrays: Arrays, got: Got, bad: Array, lie: Lie) -> Arrays:
    """The arrays, one row a participant, with those of bad ones changed."""
    found = Arrays()
    for name, rows in arrays.items():
        came = got.rows.get(name, got.shared.get(name, np.zeros_like(rows[0])))
        with np.errstate(over="ignore", invalid="ignore"):
            worse = np.asarray(lie(name, rows, came)).astype(rows.dtype)
        found[name] = np.where(bad.reshape(-1, *[1] * (rows.ndim - 1)), worse, rows)
    return found


@contextmanager
def forging(bad: set[str], forged: Forgery) -> Iterator[None]:
    """While it lasts, bad users train on other rows; of nodes that have one user each."""
    honest = Samples.training

    def training(self: Samples, limit: int) -> Rows:
        x, y, sizes = honest(self, limit)
        return (*forged(x, y), sizes) if bad.issuperset(self.users) else (x, y, sizes)

    Samples.training = training  # type: ignore[method-assign]
    try:
        yield
    finally:
        Samples.training = honest  # type: ignore[method-assign]


def client_of(strategy: str) -> type[Client[Any]]:
    """The class whose answers are those of a strategy's users."""
    return client_class(strategy)
