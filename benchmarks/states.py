"""Cost of keeping users' personal states: SQLite beside the layouts that were not chosen.

A round loads a state of every user that takes part, and keeps a new one beside those that the
server's checkpoints hold. Only that is measured, with the heads of FedRep: nobody trains.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Protocol

import numpy as np
from safetensors.numpy import load, save

from corsage.app.states.database import Database
from corsage.app.states.shelf import Kept
from corsage.app.states.store import secure
from corsage.benchmarks.measure import Measure
from corsage.core.arrays import Arrays

HEAD = {"weight": (10, 200), "bias": (10,)}
"""The head of the default model on the digits."""
CASES = ((20_000, 5), (1_000, 8), (100, 20), (20, 40))
"""Users, and rounds of all of them."""
GROUP = 256
"""Users that a node works for at once."""
CHECKPOINTS = 3
TARGET = 1.5
GARBAGE = 0.4
"""The part of a log's live bytes that may be dead before it is written anew."""


class Layout(Protocol):
    """A way to keep states."""

    def load(self, user: str, version: int) -> Arrays | None:
        """A version of a user's state."""

    def save(self, version: int, states: Sequence[Kept]) -> None:
        """A new version of some users' states."""


class FileEach:
    """The layout of earlier versions: a folder a user, a file a version."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, user: str, version: int) -> Arrays:
        """Read a file."""
        return dict(load((self.folder / user / f"{version}.safetensors").read_bytes()))

    def save(self, version: int, states: Sequence[Kept]) -> None:
        """Write files, and remove those that are not wanted."""
        for state in states:
            folder = self.folder / state.user
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{version}.safetensors").write_bytes(save(state.arrays))
            for path in folder.glob("*.safetensors"):
                if int(path.stem) not in state.others | {version}:
                    path.unlink()


class Log:
    """Records one after the other, with an index in memory; written anew when much of it is dead.

    It is for one process alone: several would have to lock it, and to read what the others wrote.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.path = folder / "states.log"
        self.file = self.path.open("w+b", buffering=0)
        self.index: dict[str, dict[int, tuple[int, int]]] = {}
        self.end = self.live = 0

    def load(self, user: str, version: int) -> Arrays:
        """Read a record and check it."""
        at, length = self.index[user][version]
        record = os.pread(self.file.fileno(), length, at)
        (checksum,) = struct.unpack_from("<I", record)
        assert zlib.crc32(record[4:]) == checksum
        (head,) = struct.unpack_from("<I", record, 4)
        return dict(load(record[8 + head :]))

    def save(self, version: int, states: Sequence[Kept]) -> None:
        """Append records in one write."""
        records = [self.record(version, state) for state in states]
        os.pwrite(self.file.fileno(), b"".join(records), self.end)
        for state, record in zip(states, records, strict=True):
            known = self.index.setdefault(state.user, {})
            for old in set(known) - state.others:
                self.live -= known.pop(old)[1]
            known[version] = self.end, len(record)
            self.end, self.live = self.end + len(record), self.live + len(record)
        if self.end - self.live > GARBAGE * self.live:
            self.compact()

    def record(self, version: int, state: Kept) -> bytes:
        """A checksum, whose and which it is, and the arrays."""
        head = json.dumps([state.user, version, sorted(state.others)]).encode()
        body = struct.pack("<I", len(head)) + head + save(state.arrays)
        return struct.pack("<I", zlib.crc32(body)) + body

    def compact(self) -> None:
        """Write what is live into a new file, and put it in the place of this one."""
        new = self.path.with_suffix(".new")
        with new.open("wb") as file:
            for known in self.index.values():
                for version, (at, length) in known.items():
                    known[version] = file.tell(), length
                    file.write(os.pread(self.file.fileno(), length, at))
            self.end = file.tell()
        new.replace(self.path)
        self.file.close()
        self.file = self.path.open("r+b", buffering=0)


LAYOUTS: dict[str, Callable[[Path], Layout]] = {
    "SQLite": lambda folder: Database(folder / "fedrep.sqlite"),
    "a file a version": FileEach,
    "a log with an index": Log,
}


def run() -> Iterator[Measure]:
    """All layouts, at all sizes, in turn."""
    for users, rounds in CASES:
        yield from case(users, rounds)


def case(users: int, rounds: int) -> Iterator[Measure]:
    """The size and the time of SQLite, with those of the other layouts beside."""
    found = {name: measured(make, users, rounds) for name, make in LAYOUTS.items()}
    content = 4 * sum(int(np.prod(shape)) for shape in HEAD.values())
    content *= users * (CHECKPOINTS + 1)
    beside = "; ".join(
        f"{name}: {files:,} files and folders, {size / 1e6:.1f} MB on the disk, {ms:.0f} ms"
        for name, (files, size, ms) in found.items()
    )
    beside = f"content {content / 1e6:.1f} MB. {beside}"
    name = f"{users:,} users"
    (files, size, ms), (*_, old) = found["SQLite"], found["a file a version"]
    yield Measure(f"{name}: files and folders", files, 5, "", beside)
    yield Measure(f"{name}: bytes", size / content, TARGET, "of content", beside)
    yield Measure(f"{name}: a round", ms, old, "ms (target: a file a version)", beside)


def measured(make: Callable[[Path], Layout], users: int, rounds: int) -> tuple[int, float, float]:
    """Files and folders, bytes on the disk, and milliseconds a round, once all versions are there.

    What SQLite writes down before a checkpoint of the server counts; the others do not wait.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "users")
        layout, times = make(folder), []
        for number in range(1, rounds + 1):
            took = one_round(layout, users, number)
            begin = time.perf_counter()
            secure(folder)
            times.append(took + time.perf_counter() - begin)
        infos = [path.stat() for path in folder.rglob("*")]
        return len(infos), sum(i.st_blocks * 512 for i in infos), 1e3 * median(times[3:])


def one_round(layout: Layout, users: int, number: int) -> float:
    """Seconds in which all users' states are loaded and kept, a group at once."""
    rng, seconds = np.random.default_rng(number), 0.0
    others = frozenset(range(max(number - CHECKPOINTS, 0), number))
    for start in range(0, users, GROUP):
        names = [str(user) for user in range(start, min(start + GROUP, users))]
        rows = {k: rng.random((len(names), *s), dtype=np.float32) for k, s in HEAD.items()}
        begin = time.perf_counter()
        if number > 1:
            for user in names:
                layout.load(user, number - 1)
        kept = [{name: array[i] for name, array in rows.items()} for i in range(len(names))]
        layout.save(number, [Kept(u, a, others) for u, a in zip(names, kept, strict=True)])
        seconds += time.perf_counter() - begin
    return seconds
