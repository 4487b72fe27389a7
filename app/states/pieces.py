"""Places for the models that a node judged: pieces for the run's own process, or a device's own.

A piece is a file of models (`app/results/rowfile.py`) of some users, named by the message that it
answers: pieces of messages that came to nothing are never taken.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

import numpy as np
from flwr.app import ArrayRecord, Context

from corsage.core.arrays import Array
from corsage.core.files import write_atomically
from corsage.core.messages.encoding import decode, encode

PIECE_NAME = re.compile(r"(?P<token>[0-9a-f]{32})-\d+\.piece")
FOLDER = "models"
"""In a strategy's folder."""


class ModelShelf(Protocol):
    """A place for pieces of a row, or for whole predictors."""

    each_alone: bool
    """Whether every user has a file of its own."""

    def put(self, row: str, token: str, number: int, user: str, data: bytes) -> None:
        """Keep a file: piece `number` of the answer to a message, or a user's predictor."""


class PieceFolder:
    """A folder of a simulation's run: the pieces of all nodes, which may be many processes."""

    each_alone = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, row: str, token: str, number: int, user: str, data: bytes) -> None:
        """Write a piece."""
        write_atomically(self.folder / f"{token}-{number}.piece", data)


class PiecesInContext:
    """A simulated node's Flower context, where a run has no folder."""

    each_alone = False

    def __init__(self, context: Context) -> None:
        self._records = context.state

    def put(self, row: str, token: str, number: int, user: str, data: bytes) -> None:
        """Leave a piece in the context."""
        self._records[f"{FOLDER}/{token}-{number}.piece"] = encode(
            {"piece": np.frombuffer(data, np.uint8)}
        )


def pieces_in(folder: Path) -> dict[str, list[Path]]:
    """The pieces in a folder, by the message that they answer, in order."""
    pieces: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.piece"), key=lambda p: (len(p.name), p.name)):
        if match := PIECE_NAME.fullmatch(path.name):
            pieces.setdefault(match["token"], []).append(path)
    return pieces


def taken_from(context: Context) -> dict[str, list[bytes]]:
    """The pieces in a context, by the message that they answer; they leave it."""
    pieces: dict[str, list[bytes]] = {}
    names = [name for name in context.state if name.startswith(f"{FOLDER}/")]
    for name in sorted(names, key=lambda name: (len(name), name)):
        record = context.state[name]
        match = PIECE_NAME.fullmatch(name.removeprefix(f"{FOLDER}/"))
        if match and isinstance(record, ArrayRecord):
            array: Array = decode(record)["piece"]
            pieces.setdefault(match["token"], []).append(array.tobytes())
        del context.state[name]
    return pieces
