"""The interface of all places for personal states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from corsage.core.arrays import Arrays


@dataclass(frozen=True)
class Kept:
    """A user's new state.

    Parameters
    ----------
    user : whose it is.
    arrays : the state.
    others : the older versions that must stay beside it; all the rest are forgotten.
    """

    user: str
    arrays: Arrays
    others: frozenset[int] = frozenset()


class Shelf(Protocol):
    """A place where one experiment's users keep versions of their states."""

    def load(self, user: str, version: int) -> Arrays | None:
        """That version, None if it is not there. StateLost if it is damaged."""

    def save(self, version: int, states: Sequence[Kept]) -> None:
        """Keep a version of some users' states, each wholly or not at all."""

    def users(self) -> list[str]:
        """The users that have a state here."""

    def versions(self, user: str) -> list[int]:
        """The versions that a user has here, in order."""


def whole(version: Any) -> int:
    """A version, which is the number of a round. What is none, say a path, is refused."""
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < 2**63:
        raise ValueError(f"a version of a state is the number of a round, not {version!r:.60}")
    return version
