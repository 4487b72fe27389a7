"""Results that a node has prepared and keeps for the messages to come."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import RLock
from typing import Any, TypeVar

T = TypeVar("T")
MOST_ENTRIES = 4096


class Names(tuple[str, ...]):
    """Users' ids as a key: those of thousands are hashed once."""

    def __hash__(self) -> int:
        found: int | None = self.__dict__.get("hash")
        if found is None:
            found = self.__dict__["hash"] = super().__hash__()
        return found


class Cache:
    """A bounded store; the oldest entries are let go. Several threads may share it."""

    def __init__(self, most: int = MOST_ENTRIES) -> None:
        self._entries: dict[Hashable, Any] = {}
        self._most, self._turn = most, RLock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result of `make`, made once."""
        with self._turn:
            if key not in self._entries:
                while len(self._entries) >= self._most:
                    del self._entries[next(iter(self._entries))]
                self._entries[key] = make()
            found: T = self._entries[key]
            return found
