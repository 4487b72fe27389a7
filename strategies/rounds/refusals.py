"""Which nodes were not let in, why, and when they are asked again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

LONGEST = 64
"""Rounds of the longest pause."""


@dataclass
class Refusal:
    """A node that is not let in.

    Parameters
    ----------
    why : in words.
    answered : whether it said anything at all.
    level : how often it was refused.
    due : the round in which it is asked again.
    """

    why: str = ""
    answered: bool = False
    level: int = 0
    due: int = 0


class Refusals:
    """The nodes that were refused; each time the pause is twice as long."""

    def __init__(self) -> None:
        self._refused: dict[int, Refusal] = {}

    def refuse(self, node: int, number: int, why: str, answered: bool) -> None:
        """Do not let a node in for now."""
        found = self._refused.setdefault(node, Refusal())
        found.why, found.answered = why, answered
        found.due = number + min(2**found.level, LONGEST)
        found.level += 1

    def let_in(self, node: int) -> None:
        """It has mended its ways."""
        self._refused.pop(node, None)

    def due(self, node: int, number: int) -> bool:
        """Whether a node is to be asked now."""
        return node not in self._refused or number >= self._refused[node].due

    def among(self, nodes: Collection[int]) -> list[int]:
        """Those of the nodes that were refused before."""
        return [node for node in nodes if node in self._refused]

    def answered(self, nodes: Collection[int]) -> int:
        """How many of the nodes did answer, and were refused."""
        return sum(self._refused[node].answered for node in self.among(nodes))

    def causes(self) -> dict[int, str]:
        """Why each node is not let in."""
        return {node: refusal.why for node, refusal in self._refused.items()}
