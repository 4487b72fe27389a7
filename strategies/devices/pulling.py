"""Replies as the grid gives them; one that cannot even be taken apart ends nothing.

A SuperLink hands on what a node has sent, and Flower puts it together in the server's process: a
node that sends nonsense there would end the run before anything of it is looked at.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from logging import DEBUG, WARNING

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore import log
from google.protobuf.message import DecodeError

from corsage.core.errors import line

NONSENSE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, DecodeError)
"""What Flower raises on the bytes of a message that it cannot put together."""


class Puller:
    """Pulls replies; after the first that is nonsense one at a time."""

    def __init__(self, grid: Grid) -> None:
        self._grid, self._careful = grid, False
        self._broken: list[str] = []

    def pull(self, messages: Iterable[str]) -> list[Message]:
        """The replies that are there to some messages."""
        wanted = list(messages)
        if not self._careful:
            found = self._try(wanted)
            self._careful = found is None
            if found is not None:
                return found
        return [reply for one in wanted for reply in self._one(one)]

    def take_broken(self) -> list[str]:
        """The messages whose replies could not be read: there will be no others."""
        found, self._broken = self._broken, []
        return found

    def _one(self, message: str) -> list[Message]:
        found = self._try([message])
        self._broken += [message] if found is None else []
        return found or []

    def _try(self, messages: list[str]) -> list[Message] | None:
        try:
            return list(self._grid.pull_messages(messages))
        except NONSENSE as error:
            log(WARNING, "a reply cannot be read: %s: %s", type(error).__name__, line(error))
            log(DEBUG, "%s", traceback.format_exc())
            return None
