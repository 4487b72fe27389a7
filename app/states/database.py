"""Personal states of simulated users: one SQLite file for all users of a strategy.

A user has as many rows as it keeps versions. A new version takes the row of one that is no longer
wanted, so the file stays as large as what it holds. Kills are harmless: what a process had not
committed is not there. Several processes may write at once, on one machine: SQLite's log of what
is not in the file yet (WAL) does not work over a network.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
import threading
import weakref
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from corsage.app.states.shelf import Kept
from corsage.app.states.sqlite_file import PAGES, limit_log, looking, page_size, working
from corsage.core.arrays import Arrays
from corsage.core.errors import CheckpointError, StateLost, StorageError

BATCH_BYTES = 2**20
"""About as many bytes are written at once."""
FIND = "SELECT layout, checksum, content FROM states WHERE user = ? AND version = ?"
ROWS_OF_USER = "SELECT id, version FROM states WHERE user = ?"
REUSE = "UPDATE states SET version = ?, layout = ?, checksum = ?, content = ? WHERE id = ?"
ADD = "INSERT INTO states (version, layout, checksum, content, user) VALUES (?, ?, ?, ?, ?)"

Parts = list[tuple[str, np.dtype[Any], tuple[int, ...]]]
"""Names, types and shapes of the arrays in a state."""


class Database:
    """The states in one file. It is made when there is a state to keep.

    Parameters
    ----------
    path : the file.
    readonly : only look: nothing is written, not even beside the file if it is at rest.
    """

    def __init__(self, path: Path, readonly: bool = False) -> None:
        self.path, self._readonly = path, readonly
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._layouts: dict[int, Parts] = {}
        self._numbers: dict[str, int] = {}
        self._turn = threading.RLock()

    def load(self, user: str, version: int) -> Arrays | None:
        """That version, None if it is not there. StateLost if it is damaged."""
        with self._reading() as connection:
            found = connection.execute(FIND, (user, version)).fetchone() if connection else None
            if connection is None or found is None:
                return None
            layout, checksum, content = found
            if (
                zlib.crc32(content) != checksum
                or (parts := self._layout(connection, layout)) is None
            ):
                raise StateLost(user, "restore", f"its state of round {version} is damaged")
        return unpacked(parts, content)

    def save(self, version: int, states: Sequence[Kept]) -> None:
        """Keep a version of some users' states, each wholly or not at all."""
        for batch in batches(states):
            with self._writing(batch) as connection:
                for state in batch:
                    self._put(connection, version, state)

    def users(self) -> list[str]:
        """The users that have a state here."""
        with self._reading() as connection:
            if connection is None:
                return []
            return [row[0] for row in connection.execute("SELECT DISTINCT user FROM states")]

    def versions(self, user: str) -> list[int]:
        """The versions that a user has here, in order."""
        with self._reading() as connection:
            if connection is None:
                return []
            return sorted(version for _, version in connection.execute(ROWS_OF_USER, (user,)))

    def secure(self) -> None:
        """Wait until all that was kept is on the disk itself.

        What is in the file is there already, so it is the log that matters. No lock is on that:
        to open and close the file itself would let go of SQLite's locks in this process.
        """
        with self._named("kept"), contextlib.suppress(FileNotFoundError):
            handle = os.open(self._log, os.O_RDWR)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def settle(self) -> None:
        """Bring all into the file, and make the log empty."""
        with self._reading() as connection:
            if connection is not None:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Let the file go; it is opened again when it is needed."""
        with self._turn:
            if self._connection is not None:
                self._connection.close()
            self._connection, self._file = None, None

    def _put(self, connection: sqlite3.Connection, version: int, state: Kept) -> None:
        """Write a state over one that is not wanted any more, and remove what else is not."""
        row = (version, *self._packed(connection, state.arrays))
        rows = connection.execute(ROWS_OF_USER, (state.user,)).fetchall()
        free = [place for place, old in rows if old not in state.others or old == version]
        if free:
            same = [place for place, old in rows if old == version]
            place = (same or free)[0]
            connection.execute(REUSE, (*row, place))
            for other in set(free) - {place}:
                connection.execute("DELETE FROM states WHERE id = ?", (other,))
        else:
            connection.execute(ADD, (*row, state.user))

    def _packed(self, connection: sqlite3.Connection, arrays: Arrays) -> tuple[int, int, bytes]:
        """The number of the arrays' layout, a checksum, and their bytes one after the other."""
        layout = json.dumps([[n, a.dtype.str, list(a.shape)] for n, a in arrays.items()])
        content = b"".join([np.ascontiguousarray(a).data for a in arrays.values()])
        if layout not in self._numbers:
            connection.execute("INSERT OR IGNORE INTO layouts (arrays) VALUES (?)", (layout,))
            found = connection.execute("SELECT id FROM layouts WHERE arrays = ?", (layout,))
            self._numbers[layout] = found.fetchone()[0]
        return self._numbers[layout], zlib.crc32(content), content

    def _layout(self, connection: sqlite3.Connection, number: int) -> Parts | None:
        """Names, types and shapes of a layout's arrays; None if it is not known."""
        if number not in self._layouts:
            found = connection.execute("SELECT arrays FROM layouts WHERE id = ?", (number,))
            row = found.fetchone()
            if row is None:
                return None
            parts = [
                (str(n), np.dtype(kind), tuple(shape)) for n, kind, shape in json.loads(row[0])
            ]
            self._layouts[number] = parts
        return self._layouts[number]

    @property
    def _log(self) -> Path:
        return self.path.with_name(f"{self.path.name}-wal")

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        """A connection, None if there is no file; what goes wrong is a StorageError."""
        with self._turn, self._named("read"):
            yield self._open()

    @contextlib.contextmanager
    def _writing(self, batch: Sequence[Kept]) -> Iterator[sqlite3.Connection]:
        """A connection within a transaction: all of it is done, or nothing."""
        with self._turn, self._named("kept"):
            connection = self._open() or self._make(batch)
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                self._numbers.clear()
                if connection.in_transaction:  # some errors have ended it already
                    connection.execute("ROLLBACK")
                raise
            limit_log(connection)

    @contextlib.contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Errors of SQLite and of the file system, in one line that says what to do."""
        try:
            yield
        except sqlite3.OperationalError as error:
            self.close()
            raise StorageError(
                f"{self.path}: personal states cannot be {what} ({error}). Free some space, or "
                "see to it that it can be written; what was written before is whole."
            ) from error
        except sqlite3.ProgrammingError:
            raise
        except sqlite3.DatabaseError as error:
            self.close()
            raise CheckpointError(
                f"{self.path}: damaged ({error}). Put a copy of it back, or begin the "
                "strategy anew: --from-round 0."
            ) from error
        except OSError as error:
            raise StorageError(
                f"{self.path}: personal states cannot be {what} ({error.strerror})."
            ) from error

    def _open(self) -> sqlite3.Connection | None:
        """The connection to the file that is there now, None if there is none."""
        try:
            info = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            self.close()
            return None
        if (info.st_dev, info.st_ino) != self._file:
            self.close()
            self._connect()
        return self._connection

    def _make(self, batch: Sequence[Kept]) -> sqlite3.Connection:
        """A new file with pages in which rows as long as these leave little room unused."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lengths = [sum(a.nbytes for a in state.arrays.values()) for state in batch]
        return self._connect(page_size(sum(lengths) // len(lengths)))

    def _connect(self, page: int = PAGES[0]) -> sqlite3.Connection:
        connection = looking(self.path) if self._readonly else working(self.path, page)
        info = self.path.stat()
        self._connection = connection
        self._file = info.st_dev, info.st_ino
        self._layouts, self._numbers = {}, {}
        weakref.finalize(self, connection.close)
        return connection


def batches(states: Sequence[Kept]) -> Iterator[list[Kept]]:
    """The states in order, so many bytes at once."""
    batch: list[Kept] = []
    size = 0
    for state in states:
        batch.append(state)
        size += sum(array.nbytes for array in state.arrays.values())
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def unpacked(parts: Parts, content: bytes) -> Arrays:
    """The arrays whose bytes these are."""
    arrays: Arrays = {}
    start = 0
    for name, kind, shape in parts:
        count = math.prod(shape)
        arrays[name] = np.frombuffer(content, kind, count, start).reshape(shape).copy()
        start += count * kind.itemsize
    return arrays
