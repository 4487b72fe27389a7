"""States of simulated users between two checkpoints: in memory, where nodes are in this process.

A run that is killed goes on from a checkpoint, so states that no checkpoint names are of no use to
it. They are written when a checkpoint is, in one go, or when they take much memory. Nodes in other
processes, such as Ray's workers, write theirs at once: whoever is asked next must find them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock

from corsage.app.states.database import Database
from corsage.app.states.shelf import Kept
from corsage.core.arrays import Arrays

HELD_BYTES = 2**24
"""Bytes that are held, at most."""


@dataclass
class Held:
    """What is held of a user.

    Parameters
    ----------
    states : by their versions.
    others : the versions in the file that must stay there.
    """

    states: dict[int, Arrays] = field(default_factory=dict)
    others: frozenset[int] = frozenset()


class Behind:
    """A file of states that is behind: what it does not have yet is held here.

    Parameters
    ----------
    file : where states come to be.
    """

    def __init__(self, file: Database) -> None:
        self.file = file
        self._held: dict[str, Held] = {}
        self._size, self._turn = 0, RLock()

    def load(self, user: str, version: int) -> Arrays | None:
        """That version, None if it is not there. StateLost if it is damaged."""
        with self._turn:
            held = self._held.get(user)
            if held is not None and version in held.states:
                return owned(held.states[version])
            gone = held is not None and version not in held.others
            return None if gone else self.file.load(user, version)

    def save(self, version: int, states: Sequence[Kept]) -> None:
        """Hold a version of some users' states."""
        with self._turn:
            for state in states:
                held = self._held.setdefault(state.user, Held(others=state.others))
                held.others &= state.others
                for old in [v for v in held.states if v == version or v not in state.others]:
                    self._size -= size_of(held.states.pop(old))
                held.states[version] = owned(state.arrays)
                self._size += size_of(state.arrays)
            if self._size > HELD_BYTES:
                self.write()

    def users(self) -> list[str]:
        """The users that have a state here."""
        with self._turn:
            return [*{**dict.fromkeys(self.file.users()), **self._held}]

    def versions(self, user: str) -> list[int]:
        """The versions that a user has here, in order."""
        with self._turn:
            found, held = self.file.versions(user), self._held.get(user)
            if held is None:
                return found
            return sorted({v for v in found if v in held.others} | set(held.states))

    def write(self) -> None:
        """Bring all that is held into the file."""
        with self._turn:
            due: dict[int, list[Kept]] = {}
            for user, held in self._held.items():
                others = held.others.union(held.states)
                for version, arrays in held.states.items():
                    due.setdefault(version, []).append(Kept(user, arrays, others))
            for version in sorted(due):
                self.file.save(version, due[version])
            self._held, self._size = {}, 0

    def close(self) -> None:
        """Bring all into the file, and let it go until it is needed."""
        with self._turn:
            self.write()
            self.file.close()


_runs: dict[Path, dict[Path, Behind]] = {}
"""The folders of runs whose nodes are in this process, and their files of states."""
_turn = RLock()


@contextmanager
def together(folder: Path) -> Iterator[None]:
    """While it lasts, the nodes of the run in a folder are in this process, as its server is."""
    folder, files = folder.resolve(), dict[Path, Behind]()
    with _turn:  # a program may have several runs at once
        _runs[folder] = files
    try:
        yield
        for one in files.values():
            one.close()
    finally:
        with _turn:
            del _runs[folder]


def behind(path: Path) -> Behind | None:
    """The states held of a file, if it is of a run whose nodes are in this process."""
    with _turn:
        for folder, files in _runs.items():
            if path in files or folder in path.parents:
                return files.get(path) or files.setdefault(path, Behind(Database(path)))
    return None


def write(folder: Path) -> None:
    """Bring all that is held of the files in a folder into these."""
    with _turn:
        found = [one for files in _runs.values() for one in files.values()]
    for one in found:
        if one.file.path.parent == folder:
            one.write()


def owned(arrays: Arrays) -> Arrays:
    """Copies, which nobody else writes to, nor holds more of."""
    return {name: array.copy() for name, array in arrays.items()}


def size_of(arrays: Arrays) -> int:
    """The bytes of a state."""
    return sum(array.nbytes for array in arrays.values())
