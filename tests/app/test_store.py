"""Personal state: versions, restarts, and nothing that leaks from a round that never was."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from corsage.app.states.database import Database
from corsage.app.states.pieces import PiecesInContext, taken_from
from corsage.app.states.shelf import Kept
from corsage.app.states.state_dir import clear, state_folder
from corsage.app.states.state_files import Files, safe_name
from corsage.app.states.store import OTHER_EXPERIMENTS, InContext, PersonalStore
from corsage.core.errors import ConfigError, StateLost, StorageError


def context() -> Context:
    return Context(1, 1, {}, RecordDict(), {})


def head(value: float) -> dict[str, np.ndarray]:
    return {"head": np.full(3, value, np.float32)}


def in_context(folder: Path) -> PersonalStore:
    return PersonalStore(InContext(context(), "run"))


def in_files(folder: Path) -> PersonalStore:
    return PersonalStore(Files(folder, "run"))


def in_database(folder: Path) -> PersonalStore:
    return PersonalStore(Database(folder / "run.sqlite"), simulated=True)


everywhere = pytest.mark.parametrize("make", [in_context, in_files, in_database])


def save(store: PersonalStore, user: str, version: int, value: float, *others: int) -> None:
    assert store.save(version, [Kept(user, head(value), frozenset(others))]) == {}


@everywhere
def test_a_repeated_round_starts_from_what_the_server_merged(
    make: Callable[[Path], PersonalStore], tmp_path: Path
) -> None:
    """Round 2 is trained and its reply lost: the server asks again from version 1."""
    store = make(tmp_path)
    save(store, "u", 1, 1)
    save(store, "u", 2, 2, 1)
    assert store.load("u", 1)["head"].tolist() == [1, 1, 1]
    save(store, "u", 2, 7, 1)
    assert store.load("u", 2)["head"].tolist() == [7, 7, 7]
    assert store.load("u", 1)["head"].tolist() == [1, 1, 1]
    assert store.versions("u") == [1, 2] and store.users() == ["u"]


@everywhere
def test_the_checkpointed_versions_are_kept_and_older_ones_go(
    make: Callable[[Path], PersonalStore], tmp_path: Path
) -> None:
    store = make(tmp_path)
    for version in range(1, 6):
        save(store, "u", version, version, version - 1, 2)
    for version in (2, 4, 5):
        assert store.load("u", version)["head"][0] == version
    for version in (1, 3):
        with pytest.raises(StateLost, match=f"state of round {version} is gone"):
            store.load("u", version)
    assert store.load("u", 0) == {}


@everywhere
@pytest.mark.parametrize("version", ["../../x", "1", -1, True, 1.0, None, 2**70])
def test_a_version_is_the_number_of_a_round(
    make: Callable[[Path], PersonalStore], tmp_path: Path, version: Any
) -> None:
    """A server that sends a path reads and writes nothing, in the folder or out of it."""
    store = make(tmp_path / "states")
    (tmp_path / "x.safetensors").write_bytes(b"secret")
    with pytest.raises(ValueError, match="number of a round"):
        store.load("u", version)
    with pytest.raises(ValueError, match="number of a round"):
        store.save(version, [Kept("u", head(1))])
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


def test_a_restarted_node_finds_its_folder_and_without_one_says_so(tmp_path: Path) -> None:
    save(in_files(tmp_path), "u", 3, 3)
    assert in_files(tmp_path).load("u", 3)["head"][0] == 3
    with pytest.raises(StateLost):
        in_context(tmp_path).load("u", 3)


def test_another_experiment_has_states_of_its_own(tmp_path: Path) -> None:
    ctx = context()
    for make in (partial(InContext, ctx), partial(Files, tmp_path)):
        save(PersonalStore(make("one")), "u", 1, 1)
        with pytest.raises(StateLost):
            PersonalStore(make("two")).load("u", 1)
        assert PersonalStore(make("one")).load("u", 1)["head"][0] == 1


def test_names_of_experiments_may_be_any_text() -> None:
    """One may begin as another does."""
    ctx = context()
    for number, name in enumerate(("e/f", "e", "", "a b/c/", "E"), 1):
        save(PersonalStore(InContext(ctx, name)), "u/v", 1, number)
        assert PersonalStore(InContext(ctx, name)).load("u/v", 1)["head"][0] == number
        assert len(ctx.state) == min(number, OTHER_EXPERIMENTS + 1)  # the oldest goes
    for number, name in enumerate(("e", "", "a b/c/", "E"), 2):
        store = PersonalStore(InContext(ctx, name))
        assert store.load("u/v", 1)["head"][0] == number


def test_models_that_were_judged_outlast_experiments() -> None:
    """A method that is made of several, as `mixed-model` is, would lose them."""
    ctx = context()
    PiecesInContext(ctx).put("row", "0" * 32, 0, "u", b"model")
    for name in "abcdefg":
        save(PersonalStore(InContext(ctx, name)), "u", 1, 1)
    assert taken_from(ctx) == {"0" * 32: [b"model"]}


def test_a_damaged_file_is_a_lost_state(tmp_path: Path) -> None:
    save(in_files(tmp_path), "u", 1, 1)
    path = next(tmp_path.rglob("*.safetensors"))
    whole = path.read_bytes()
    for damage in (b"garbage", whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(damage)
        with pytest.raises(StateLost, match="restore"):
            in_files(tmp_path).load("u", 1)


def test_a_file_that_cannot_be_read_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may be well again tomorrow: the user is dropped, and does not start anew."""
    store = in_files(tmp_path)
    save(store, "u", 1, 1)

    def broken(*_: Any) -> bytes:
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr(Path, "read_bytes", broken)
    with pytest.raises(OSError, match="Input/output error"):
        store.load("u", 1)
    with pytest.raises(StorageError, match="cannot be read"):
        PersonalStore(Files(tmp_path, "run"), simulated=True).load("u", 1)


def test_a_full_disk_drops_a_device_and_ends_a_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    device, simulated = (PersonalStore(Files(tmp_path, "run"), yes) for yes in (False, True))
    assert device.save(1, [Kept("u", head(1))]) == {"u": "No space left on device"}
    with pytest.raises(StorageError, match="No space left"):
        simulated.save(1, [Kept("u", head(1))])
    assert device.versions("u") == []


def test_what_is_not_ours_in_a_folder_stays(tmp_path: Path) -> None:
    """And does not fail its user for ever, as a name that is no number once did."""
    store = in_files(tmp_path)
    save(store, "u", 1, 1)
    folder = tmp_path / "run" / "u"
    for name in ("x.safetensors", "01.safetensors", "-1.safetensors", "notes.txt"):
        (folder / name).write_text("mine")
    (folder / ".1.safetensors.0123456789ab").write_text("torn")
    save(store, "u", 2, 2)
    found = {path.name for path in folder.iterdir()}
    assert found == {
        "2.safetensors", "x.safetensors", "01.safetensors", "-1.safetensors", "notes.txt"
    }  # fmt: skip
    assert store.versions("u") == [2]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o777])
def test_only_its_owner_reads_what_a_device_keeps(tmp_path: Path, mask: int) -> None:
    old = os.umask(mask)
    try:
        folder = state_folder(str(tmp_path / "states"))
        save(in_files(folder), "u", 1, 1)
    finally:
        os.umask(old)
    for path in [folder, *folder.rglob("*")]:
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path


def test_folders_that_others_can_read_are_shut(tmp_path: Path) -> None:
    states = tmp_path / "states"
    save(in_files(states), "u", 1, 1)
    for path in (states, states / "run", states / "run" / "u"):
        path.chmod(0o755)
    save(in_files(state_folder(str(states))), "u", 2, 2)
    for path in (states, states / "run", states / "run" / "u"):
        assert mode(path) == 0o700


def test_a_folder_with_other_things_is_left_alone_or_refused(tmp_path: Path) -> None:
    """Say a home, or /tmp: what lies within is shut, the folder itself is not ours."""
    (tmp_path / "letter.txt").write_text("dear")
    tmp_path.chmod(0o755)
    save(in_files(state_folder(str(tmp_path))), "u", 1, 1)
    assert mode(tmp_path) == 0o755 and mode(tmp_path / "run") == 0o700
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match="others may write there"):
        state_folder(str(tmp_path))


def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(ConfigError, match="belongs to another user"):
        state_folder(str(tmp_path))
    (tmp_path / "file").touch()
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="cannot be used"):
        state_folder(str(tmp_path / "file"))


def run_of(number: int) -> str:
    return f"{number:012x}"


def test_a_device_keeps_the_states_of_the_runs_used_last(tmp_path: Path) -> None:
    """All strategies of a run together; the current one whatever its age; what is not ours."""
    (tmp_path / "letter.txt").write_text("dear")
    names = [f"{name}-{run_of(i)}" for i in range(5) for name in ("fedrep", "local")]
    for place, name in enumerate(names):
        save(PersonalStore(Files(tmp_path, name)), "u", 1, 1)
        for path in [tmp_path / name, *(tmp_path / name).rglob("*")]:
            os.utime(path, (1000 + place, 1000 + place))
    Files(tmp_path, f"local-{run_of(1)}")  # a message for it: it is in use
    clear(tmp_path, 3, tmp_path / f"fedrep-{run_of(0)}")
    left = {path.name for path in tmp_path.iterdir()}
    kept = {f"{name}-{run_of(i)}" for i in (0, 1, 4) for name in ("fedrep", "local")}
    assert left == kept | {"letter.txt"}


def test_a_new_run_clears_the_oldest(tmp_path: Path) -> None:
    for number in range(4):
        files = Files(tmp_path, f"fedrep-{run_of(number)}")
        files.on_new = lambda files=files: clear(tmp_path, 2, files.folder)
        for version in (1, 2):
            save(PersonalStore(files), "u", version, 1, version - 1)
        for path in [files.folder, *files.folder.rglob("*")]:
            os.utime(path, (1000 + number, 1000 + number))
    assert {path.name for path in tmp_path.iterdir()} == {f"fedrep-{run_of(i)}" for i in (2, 3)}


NAMES = ["con", "nul", "aux.x", "com1", "lpt9.tar", "a.", "a..", "../x", "..", ".", "", " ", "A"]
NAMES += ["a", "ä", "a" * 300, "a" * 301, "x/y", "x\\y", "a ", "con~", "\0", "-", "ß", "ss", "SS"]


@given(st.lists(st.one_of(st.text(), st.sampled_from(NAMES)), unique=True, min_size=2, max_size=8))
def test_names_of_folders_are_distinct_and_safe(users: list[str]) -> None:
    names = [safe_name(user) for user in users]
    assert len({name.casefold() for name in names}) == len(users)
    for name in names:
        assert not set(name) & set('/\\\0:*?"<>| ')
        assert not name.startswith(".") and not name.endswith(".")
        assert name.isascii() and len(name) < 120
        assert name.split(".")[0] not in ("con", "prn", "aux", "nul", "com1", "lpt9")


def test_ordinary_names_are_folders_as_they_are() -> None:
    for name in ("0", "ann", "f0123_45", "a.b", "consul", "com", "lpt10"):
        assert safe_name(name) == name
