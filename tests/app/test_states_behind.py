"""States that are held between checkpoints: what is there is the same as if they were written."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corsage.app.command import run
from corsage.app.states import behind
from corsage.app.states.behind import Behind, together
from corsage.app.states.database import Database
from corsage.app.states.shelf import Kept
from corsage.app.states.store import secure

VERSIONS = st.integers(0, 5)
KEPT = st.tuples(st.sampled_from("abc"), st.frozensets(VERSIONS), st.integers(1, 99))
SAVES = st.lists(
    st.tuples(
        VERSIONS,
        st.lists(KEPT, unique_by=lambda entry: entry[0], max_size=3),
        st.sampled_from(["", "", "write", "close", "anew"]),
    ),
    max_size=12,
)


def state(value: int) -> dict[str, np.ndarray[Any, Any]]:
    return {"head": np.full(4, value, np.float32)}


def content(store: Behind | Database) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for user in store.users():
        for version in store.versions(user):
            arrays = store.load(user, version)
            assert arrays is not None and (arrays["head"] == arrays["head"][0]).all()
            found.setdefault(user, {})[version] = float(arrays["head"][0])
    return found


@settings(max_examples=60, deadline=None)
@given(SAVES, st.sampled_from([20, 50, 10**6]))
def test_it_is_what_a_dictionary_would_be(steps: Any, most: int) -> None:
    """Whatever is saved and forgotten, before and after it is written, on purpose or for room."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(behind, "HELD_BYTES", most)
        path = Path(folder) / "x.sqlite"
        store = Behind(Database(path))
        model: dict[str, dict[int, float]] = {}
        for version, entries, then in steps:
            store.save(version, [Kept(u, state(value), others) for u, others, value in entries])
            for user, others, value in entries:
                old = {v: x for v, x in model.get(user, {}).items() if v in others}
                model[user] = old | {version: value}
            if then == "write":
                store.write()
            elif then:
                store.close()
                store = Behind(Database(path)) if then == "anew" else store
            assert content(store) == model
            assert store.load("a", 9) is None
        store.close()
        assert content(Database(path)) == model


def test_what_is_held_is_nobody_else_s(tmp_path: Path) -> None:
    """A client may write into what it gets, and into what it gave."""
    store = Behind(Database(tmp_path / "x.sqlite"))
    given = state(3)
    store.save(1, [Kept("a", given)])
    given["head"][:] = 7
    found = store.load("a", 1)
    assert found is not None
    found["head"][:] = 8
    assert content(store) == {"a": {1: 3.0}}


def test_a_checkpoint_has_all_and_a_block_that_fails_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "fedrep" / "users" / "x.sqlite"
    assert behind.behind(path) is None
    with pytest.raises(ValueError), together(tmp_path):
        store = behind.behind(path)
        assert store is not None and store is behind.behind(path)
        store.save(1, [Kept("a", state(3))])
        assert not path.exists()
        secure(path.parent)
        assert content(Database(path)) == {"a": {1: 3.0}}
        store.save(2, [Kept("a", state(4))])
        raise ValueError
    assert behind.behind(path) is None
    assert content(Database(path)) == {"a": {1: 3.0}}


def test_a_run_may_begin_while_another_one_looks_for_its_files(tmp_path: Path) -> None:
    """A program may have several runs at once, each in a thread."""

    def begun() -> None:
        with together(tmp_path / "b"):
            going.wait(1)

    going = Event()
    with together(tmp_path / "a"):
        other = Thread(target=begun)

        class Looked(PurePosixPath):
            @property
            def parents(self) -> Any:
                if not other.ident:
                    other.start()
                    other.join(0.1)
                return super().parents

        assert behind.behind(Looked(tmp_path / "c")) is None  # type: ignore[arg-type]
        going.set()
        other.join()


def test_a_run_writes_states_when_it_writes_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two checkpoints: the states of the two rounds before each, which a round may go back to."""
    written: list[int] = []
    plain = Database.save

    def save(self: Database, version: int, states: Any) -> None:
        written.append(version)
        plain(self, version, states)

    monkeypatch.setattr(Database, "save", save)
    words = ["strategy=local", "num-users=4", "num-rounds=8", "checkpoint-every=4", "hidden=4"]
    words += ["fraction-train=1", "num-nodes=2", f"run-dir={tmp_path}"]
    assert run(words, "") == 0
    assert written == [3, 4, 7, 8]
