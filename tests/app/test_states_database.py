"""One file for all users of a strategy: kills, several writers, damage, and its size."""

from __future__ import annotations

import itertools
import os
import pickle
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.app.nodes.node import Node, Nodes
from corsage.app.nodes.places import Places
from corsage.app.states import sqlite_file
from corsage.app.states.database import Database
from corsage.app.states.shelf import Kept
from corsage.app.states.sqlite_file import PAGES, bytes_of_row, page_size
from corsage.app.states.store import secure
from corsage.core.errors import CheckpointError, StateLost, StorageError
from corsage.core.messages.wire import Task

SMALL = settings(max_examples=25, deadline=None)


def state(value: float, size: int = 3) -> dict[str, np.ndarray]:
    return {"head": np.full(size, value, np.float32), "count": np.array(int(value), np.int64)}


def kept(user: str, value: float, *others: int, size: int = 3) -> Kept:
    return Kept(user, state(value, size), frozenset(others))


def content(store: Database) -> dict[str, dict[int, float]]:
    """All that a file holds, each state checked to be of one piece."""
    found: dict[str, dict[int, float]] = {}
    for user in store.users():
        for version in store.versions(user):
            arrays = store.load(user, version)
            assert arrays is not None
            value = float(arrays["count"])
            assert (arrays["head"] == np.float32(value)).all()
            found.setdefault(user, {})[version] = value
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "users" / "fedrep.sqlite"


def test_arrays_come_back_as_they_were(file: Path) -> None:
    """Any types and shapes, no and empty arrays, views; and what comes back can be written to."""
    arrays: dict[str, Any] = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "b": np.array(True),
        "c": np.zeros((0, 4), np.int16),
        "d é/'": np.arange(9, dtype=">f8")[::2],
    }
    store = Database(file)
    store.save(1, [Kept("ä", arrays), Kept("", {})])
    found = store.load("ä", 1)
    assert found is not None and list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and found[name].flags.writeable
        np.testing.assert_array_equal(found[name], array)
    assert store.load("", 1) == {} and store.load("x", 1) is None


SAVES = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.lists(
            st.tuples(st.sampled_from("abc"), st.frozensets(st.integers(0, 5)), st.integers(1, 99)),
            unique_by=lambda entry: entry[0],
            max_size=3,
        ),
        st.sampled_from(["", "reopen", "settle", "other"]),
    ),
    max_size=12,
)


@SMALL
@given(SAVES)
def test_it_is_what_a_dictionary_would_be(steps: Any) -> None:
    """Whatever is saved, closed, emptied of its log, and read by another process' connection."""
    with TemporaryDirectory() as folder:
        store, other = (Database(Path(folder) / "x.sqlite") for _ in range(2))
        model: dict[str, dict[int, float]] = {}
        for version, entries, then in steps:
            store.save(version, [kept(u, value, *others) for u, others, value in entries])
            for user, others, value in entries:
                old = {v: x for v, x in model.get(user, {}).items() if v in others}
                model[user] = old | {version: value}
            if then == "reopen":
                store.close()
            elif then == "settle":
                other.settle()
            elif then == "other":
                store, other = other, store
            assert content(store) == model == content(other)
        store.close()
        other.close()


@SMALL
@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.data())
def test_killed_at_any_byte_it_holds_whole_transactions(sizes: list[int], data: Any) -> None:
    """The log is written from its beginning to its end: what a kill leaves is a part of it."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        store = Database(folder / "x.sqlite")
        store.save(0, [kept("z", 1, size=300)])
        after: list[dict[str, dict[int, float]]] = [content(store)]
        log = folder / "x.sqlite-wal"
        ends = [log.stat().st_size]
        for version, size in enumerate(sizes, 1):
            store.save(version, [kept(u, version, version - 1, size=40 * size) for u in "ab"])
            after.append(content(store))
            ends.append(log.stat().st_size)
        whole = log.read_bytes()
        cut = data.draw(st.integers(ends[0], len(whole)))
        (folder / "cut").mkdir()
        shutil.copy(folder / "x.sqlite", folder / "cut" / "x.sqlite")
        garbage = data.draw(st.sampled_from([b"", b"\0" * 40, b"garbage" * 900]))
        (folder / "cut" / "x.sqlite-wal").write_bytes(whole[:cut] + garbage)
        again = Database(folder / "cut" / "x.sqlite")
        done = sum(end <= cut for end in ends) - 1
        assert content(again) == after[done]
        again.save(9, [kept("a", 9, done)])
        assert content(again)["a"][9] == 9
        store.close()
        again.close()


WRITER = """
import sys
from pathlib import Path
import numpy as np
from corsage.app.states.database import Database
from corsage.app.states.shelf import Kept
path, name, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
store = Database(path)
for number in range(1, rounds + 1):
    arrays = {"head": np.full(5000, number, np.float32), "count": np.array(number)}
    states = [Kept(f"{name}{i}", arrays, frozenset({number - 1})) for i in range(8)]
    for i in range(8):
        assert number == 1 or store.load(f"{name}{i}", number - 1)["count"] == number - 1
    store.save(number, states)
    print(number, flush=True)
"""


def writer(file: Path, name: str, rounds: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(file), name, str(rounds)],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_processes_that_write_at_once_and_one_is_killed(file: Path) -> None:
    """What was said to be kept is there, of all of them; what was not is whole or not there."""
    writers = {name: writer(file, name, 40 if name < "c" else 10**6) for name in "abc"}
    assert writers["c"].stdout
    said = [int(line) for line in itertools.islice(writers["c"].stdout, 25)]
    os.kill(writers["c"].pid, signal.SIGKILL)
    said += [int(line) for line in writers["c"].stdout.read().split("\n")[:-1]]
    assert all(writers[name].wait() == 0 for name in "ab")
    writers["c"].wait()
    found = content(Database(file))
    for i in range(8):
        assert found[f"a{i}"] == found[f"b{i}"] == {39: 39, 40: 40}
        versions = found[f"c{i}"]
        assert set(versions) in ({said[-1] - 1, said[-1]}, {said[-1], said[-1] + 1})
    assert len({tuple(found[f"c{i}"]) for i in range(8)}) == 1
    for one in writers.values():
        assert one.stdout
        one.stdout.close()


def test_a_thousand_rounds_leave_a_file_as_large_as_what_it_holds(file: Path) -> None:
    """Also while others read, for users that are drawn at random."""
    store, other, rng = Database(file), Database(file), np.random.default_rng(0)
    last: dict[str, int] = {}
    largest = 0
    for number in range(1, 1001):
        users = [str(i) for i in rng.choice(60, 12, replace=False)]
        states = [kept(u, number, last.get(u, 0), size=650) for u in users]
        store.save(number, states)
        last.update(dict.fromkeys(users, number))
        assert other.load(users[0], number) is not None
        if number > 50:
            largest = max(largest, sum(p.stat().st_size for p in file.parent.iterdir()))
    secure(file.parent, last=True)
    held = 60 * 2 * (650 * 4 + 8)
    assert file.stat().st_size < 1.3 * held
    assert largest < 1.3 * held + sqlite_file.LOG_BYTES + 2**17
    store.close()
    other.close()
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize("row", [100, 1500, 2100, 2600, 4200, 8050, 33000, 60040, 400000])
def test_pages_suit_the_rows(file: Path, row: int) -> None:
    """Of rows that leave half a page unused other pages are chosen."""
    assert page_size(row) in PAGES
    assert min(bytes_of_row(row, size) for size in PAGES) / row < 1.4
    store = Database(file)
    for version in (1, 2):
        store.save(version, [Kept(f"{i:03}", {"a": np.zeros(row, np.uint8)}, frozenset({1}))
                             for i in range(max(2, min(100, 10**6 // row)))])  # fmt: skip
    store.close()
    users = max(2, min(100, 10**6 // row))
    assert file.stat().st_size < 1.5 * 2 * users * (row + 40) + 2 * page_size(row) + 2**14


def test_a_damaged_state_is_lost_and_the_others_are_not(file: Path) -> None:
    store = Database(file)
    store.save(1, [kept("a", 1), kept("b", 2)])
    store.close()
    with sqlite3.connect(file) as plain:
        plain.execute("UPDATE states SET content = zeroblob(20) WHERE user = 'a'")
    plain.close()
    with pytest.raises(StateLost, match="user a: restore: its state of round 1 is damaged"):
        store.load("a", 1)
    assert store.load("b", 1) is not None
    store.save(2, [kept("a", 3)])  # it starts anew
    assert content(store)["a"] == {2: 3}


@pytest.mark.parametrize("what", ["garbage", "middle", "short"])
def test_a_damaged_file_is_one_line(file: Path, what: str) -> None:
    store = Database(file)
    store.save(1, [kept(str(i), i, size=900) for i in range(60)])
    store.close()
    raw = bytearray(file.read_bytes())
    raw = {
        "garbage": bytearray(b"garbage" * 900),
        "middle": raw[:4096] + bytearray(b"\x07" * (len(raw) - 8192)) + raw[-4096:],
        "short": raw[: len(raw) // 2],
    }[what]
    file.write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"fedrep.sqlite: damaged \(.*begin the strategy"):
        for i in range(60):
            store.load(str(i), 1)


def test_what_is_not_ours_is_refused_and_left_as_it_is(file: Path) -> None:
    file.parent.mkdir()
    plain = sqlite3.connect(file)
    plain.execute("CREATE TABLE letters (text)")
    plain.commit()
    plain.close()
    before = file.read_bytes()
    for action in (lambda s: s.load("a", 1), lambda s: s.save(1, [kept("a", 1)])):
        with pytest.raises(CheckpointError, match="not personal states"):
            action(Database(file))
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_full_disk_is_one_line_and_what_was_written_is_whole(file: Path) -> None:
    """SQLite is told that the file may not grow, and says the same as of a full disk."""
    store = Database(file)
    store.save(1, [kept("a", 1)])
    connection = store._open()
    assert connection is not None
    connection.execute("PRAGMA max_page_count = 1")
    with pytest.raises(StorageError, match=r"cannot be kept \(database or disk is full\).*whole"):
        store.save(2, [kept(str(i), 2, size=3000) for i in range(30)])
    assert content(store) == {"a": {1: 1}}
    store.save(2, [kept("a", 2)])


def test_a_file_that_another_process_locks_is_waited_for_and_then_named(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "LOCK_SECONDS", 0.05)
    store, other = Database(file), Database(file)
    store.save(1, [kept("a", 1)])
    other.save(1, [kept("b", 1)])
    connection = other._open()
    assert connection is not None
    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match=r"cannot be kept \(database is locked\)"):
        store.save(2, [kept("a", 2)])
    assert content(store)["a"] == {1: 1}  # readers do not wait
    connection.execute("ROLLBACK")
    store.save(2, [kept("a", 2)])


def test_a_folder_that_was_put_back_is_read_anew(file: Path) -> None:
    """Of the file that is open, only what stands at its path counts."""
    store = Database(file)
    store.save(1, [kept("a", 1)])
    shutil.rmtree(file.parent)
    assert store.load("a", 1) is None and store.users() == []
    store.save(1, [kept("b", 1)])
    assert content(Database(file)) == {"b": {1: 1}}


def test_outsiders_only_look(file: Path) -> None:
    """While the run goes on and when it is at rest; nothing is written, not even beside it."""
    look = Database(file, readonly=True)
    assert look.users() == [] and look.load("a", 1) is None
    store = Database(file)
    store.save(1, [kept("a", 1)])
    assert content(look) == {"a": {1: 1}}
    store.save(2, [kept("a", 2, 1)])
    assert content(look) == {"a": {1: 1, 2: 2}}
    with pytest.raises(StorageError, match="readonly"):
        look.save(3, [kept("a", 3)])
    look.close()
    store.close()
    before = file.read_bytes()
    assert content(Database(file, readonly=True)) == {"a": {1: 1, 2: 2}}
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_what_a_process_has_open_stays_in_it(tmp_path: Path) -> None:
    """Ray sends the client app to its workers, also when this process has open databases."""
    task = Task("fedrep", "fedrep-0123456789ab", 0, (2,), 2, state_dir=str(tmp_path))
    places, node = Places(), Node(cast(Any, None), ("0",), simulated=True)
    places.states(Context(1, 1, {}, RecordDict(), {}), node, task).save(
        1, [Kept("0", {"head": np.zeros(2)}, frozenset())]
    )
    assert list(tmp_path.iterdir())
    for one in (places, Nodes()):
        assert type(pickle.loads(pickle.dumps(one))) is type(one)
