"""What a node has prepared and keeps for the messages to come."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import RLock
from typing import Any, TypeVar

T = TypeVar("T")
MOST = 4096


class Cache:
    """A bounded store; the oldest entries are let go. Several threads may share it."""

    def __init__(self, most: int = MOST) -> None:
        self._entries: dict[Hashable, Any] = {}
        self._most, self._turn = most, RLock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` makes, made once."""
        with self._turn:
            if key not in self._entries:
                while len(self._entries) >= self._most:
                    del self._entries[next(iter(self._entries))]
                self._entries[key] = make()
            found: T = self._entries[key]
            return found
