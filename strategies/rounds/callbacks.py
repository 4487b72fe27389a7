"""Hooks around a round: subclass Callback and override what you need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import TYPE_CHECKING, Any

from flwr.supercore import log

from corsage.core.errors import escaped

if TYPE_CHECKING:
    from corsage.strategies.rounds.base import Strategy
    from corsage.strategies.rounds.results import Summary


class Callback:
    """Hooks with no effect; a strategy calls those of all its callbacks in order.

    `shows_notes`: this callback shows notes to people, so they need not go to Flower's log.
    `reports`: it is a command's, which shows rounds and rows itself: neither need these.
    """

    shows_notes = reports = False

    def on_start(self, strategy: Strategy[Any, Any]) -> None:
        """Users are known and the first state is built; a checkpoint may replace it here."""

    def on_round_start(self, strategy: Strategy[Any, Any], number: int) -> None:
        """Round `number` is about to begin."""

    def on_round_end(self, strategy: Strategy[Any, Any], row: dict[str, Any]) -> None:
        """A round is merged; `row` is what is known of it, a line of metrics.jsonl."""

    def on_note(self, text: str) -> None:
        """Something worth a line in the log happened."""

    def on_end(self, strategy: Strategy[Any, Any], results: Sequence[Summary]) -> None:
        """All rounds are done; one result for the strategy, and one for each row beside it."""


@dataclass(frozen=True)
class Notes:
    """Notes that are worth a line, for the log and for whoever watches.

    Parameters
    ----------
    name : the strategy that is named in the log.
    callbacks : who watches.
    """

    name: str
    callbacks: Sequence[Callback]

    def warn(self, text: str) -> None:
        """One line on what the user should change."""
        self(text, WARNING)

    def __call__(self, text: str, level: int = INFO) -> None:
        """One line."""
        text = escaped(text)
        if not any(callback.shows_notes for callback in self.callbacks):
            log(level, "%s: %s", self.name, text)
        for callback in self.callbacks:
            callback.on_note(text)
