"""A run's memory of each of its users, however many there are: one array, and one text.

A run copies it before each round and writes it into each checkpoint, so both are to cost next to
nothing: a copy is that of an array, and a million ids are written as one text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, MutableSet, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corsage.core.arrays import Array, Arrays, Ints

ABSENT = -1
FIRST_ROOM = 64
"""Users for whom there is room at first."""


class Ledger(MutableMapping[str, int]):
    """A whole number from 0 on for each of many users.

    Copies share the places of users, which only get more.

    Parameters
    ----------
    entries : to begin with.
    """

    def __init__(self, entries: Mapping[str, int] | None = None) -> None:
        self._places: dict[str, int] = {}
        self._values: Ints = np.full(FIRST_ROOM, ABSENT, np.int64)
        for user, value in (entries or {}).items():
            self[user] = value

    def __getitem__(self, user: str) -> int:
        place = self._places[user]
        value = int(self._values[place]) if place < len(self._values) else ABSENT
        if value == ABSENT:
            raise KeyError(user)
        return value

    def __setitem__(self, user: str, value: int) -> None:
        self.put([user], value)

    def __delitem__(self, user: str) -> None:
        self[user]  # or KeyError
        self._values[self._places[user]] = ABSENT

    def __iter__(self) -> Iterator[str]:
        values = self._values
        return (u for u, i in self._places.items() if i < len(values) and values[i] != ABSENT)

    def __len__(self) -> int:
        return int(np.count_nonzero(self._values != ABSENT))

    def __bool__(self) -> bool:
        return bool((self._values != ABSENT).any())

    def __repr__(self) -> str:
        return repr(dict(self))

    def put(self, users: Iterable[str], value: int | Sequence[int]) -> None:
        """The same number for some users, or of each its own."""
        places: list[Any] = [*map(self._places.get, users := [*users])]
        if None in places:
            places = [self._places.setdefault(user, len(self._places)) for user in users]
        if places and (most := max(places)) >= len(self._values):
            more = np.full(max(most + 1, 2 * len(self._values)) - len(self._values), ABSENT)
            self._values = np.concatenate([self._values, more])
        self._values[places] = value

    def copy(self) -> Ledger:
        """The same numbers, which stay as they are now."""
        found = Ledger()
        found._places, found._values = self._places, self._values.copy()
        return found

    def arrays(self, name: str) -> Arrays:
        """As a file has it."""
        there = self._values != ABSENT
        whole = there[: len(self._places)].all() and len(self._places) <= len(there)
        users = list(self._places) if whole else list(self)
        places = [self._places[user] for user in users] if not whole else slice(len(users))
        return {f"{name}.users": packed(users), f"{name}.numbers": self._values[places].copy()}

    @classmethod
    def of(cls, name: str, arrays: Mapping[str, Array]) -> Ledger:
        """The inverse of `arrays`."""
        users, ledger = unpacked(arrays[f"{name}.users"]), cls()
        numbers = np.asarray(arrays[f"{name}.numbers"], np.int64)
        if len(users) != len(numbers) or (numbers < 0).any():
            raise ValueError(f"{name}: {len(numbers)} numbers of {len(users)} users")
        ledger._places = {user: place for place, user in enumerate(users)}
        if len(ledger._places) != len(users):
            raise ValueError(f"{name}: a user is named twice")
        ledger._values = np.concatenate([numbers, np.full(FIRST_ROOM, ABSENT)])
        return ledger


class Crowd(MutableSet[str]):
    """A set of users, in the order in which they came."""

    def __init__(self, users: Iterable[str] = ()) -> None:
        self._users = dict.fromkeys(users)

    def __contains__(self, user: object) -> bool:
        return user in self._users

    def __iter__(self) -> Iterator[str]:
        return iter(self._users)

    def __len__(self) -> int:
        return len(self._users)

    def __repr__(self) -> str:
        return repr(set(self._users))

    def add(self, value: str) -> None:
        """Take a user in."""
        self._users[value] = None

    def discard(self, value: str) -> None:
        """Leave a user out."""
        self._users.pop(value, None)

    def update(self, users: Iterable[str]) -> None:
        """Take several users in."""
        self._users.update(dict.fromkeys(users))

    def arrays(self, name: str) -> Arrays:
        """As a file has it."""
        return {f"{name}.users": packed(self._users)}

    @classmethod
    def of(cls, name: str, arrays: Mapping[str, Array]) -> Crowd:
        """The inverse of `arrays`."""
        return cls(unpacked(arrays[f"{name}.users"]))


def packed(users: Iterable[str]) -> NDArray[np.uint8]:
    """Ids as the bytes of one text, in JSON."""
    return np.frombuffer(json.dumps([*users]).encode(), np.uint8)


def unpacked(array: Array) -> list[str]:
    """The inverse of `packed`."""
    found = json.loads(np.asarray(array, np.uint8).tobytes())
    if not isinstance(found, list) or set(map(type, found)) - {str}:
        raise ValueError("no list of texts")
    return found
