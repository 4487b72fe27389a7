"""Personal state: versions, restarts, and nothing that leaks from a round that never was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from corsage.app.store import OTHERS, PersonalStore, safe_name
from corsage.core.errors import StateLost


def context() -> Context:
    return Context(1, 1, {}, RecordDict(), {})


def head(value: float) -> dict[str, np.ndarray]:
    return {"head": np.full(3, value, np.float32)}


def test_a_repeated_round_starts_from_what_the_server_merged(tmp_path: Path) -> None:
    """Round 2 is trained and its reply lost: the server asks again from version 1."""
    for folder in (None, tmp_path):
        store = PersonalStore(context(), folder, "run")
        store.save("u", 1, head(1), {0})
        store.save("u", 2, head(2), {1})
        assert store.load("u", 1)["head"].tolist() == [1, 1, 1]
        store.save("u", 2, head(7), {1})
        assert store.load("u", 2)["head"].tolist() == [7, 7, 7]


def test_the_checkpointed_version_is_kept_and_older_ones_go(tmp_path: Path) -> None:
    store = PersonalStore(context(), tmp_path, "run")
    for version in range(1, 6):
        store.save("u", version, head(version), {version - 1, 2})
    for version in (2, 4, 5):
        assert store.load("u", version)["head"][0] == version
    for version in (1, 3):
        with pytest.raises(StateLost, match=f"state of round {version} is gone"):
            store.load("u", version)
    assert len(list(tmp_path.rglob("*.safetensors"))) == 3


def test_a_restarted_node_finds_its_folder_and_without_one_says_so(tmp_path: Path) -> None:
    first = context()
    PersonalStore(first, tmp_path, "run").save("u", 3, head(3), set())
    assert PersonalStore(context(), tmp_path, "run").load("u", 3)["head"][0] == 3
    assert PersonalStore(first, None, "run").load("u", 3)["head"][0] == 3
    with pytest.raises(StateLost):
        PersonalStore(context(), None, "run").load("u", 3)


def test_another_experiment_has_states_of_its_own(tmp_path: Path) -> None:
    ctx = context()
    PersonalStore(ctx, tmp_path, "one").save("u", 1, head(1), set())
    other = PersonalStore(ctx, tmp_path, "two")
    with pytest.raises(StateLost):
        other.load("u", 1)
    assert len(ctx.state) == 0  # memory is let go; the file stays for a resume
    assert PersonalStore(ctx, tmp_path, "one").load("u", 1)["head"][0] == 1


def test_names_of_experiments_may_be_any_text() -> None:
    """One may begin as another does."""
    ctx = context()
    for number, name in enumerate(("e/f", "e", "", "a b/c/", "E"), 1):
        PersonalStore(ctx, None, name).save("u/v", 1, head(number), set())
        assert PersonalStore(ctx, None, name).load("u/v", 1)["head"][0] == number
        assert len(ctx.state) == min(number, OTHERS + 1)  # the oldest goes
    for number, name in enumerate(("e", "", "a b/c/", "E"), 2):
        assert PersonalStore(ctx, None, name).load("u/v", 1)["head"][0] == number


def test_simulated_users_with_a_folder_burden_no_message(tmp_path: Path) -> None:
    """Ray would copy what is in the context to a worker and back with every message."""
    ctx = context()
    store = PersonalStore(ctx, tmp_path, "run", in_context=False)
    store.save("u", 1, head(1), {0})
    assert len(ctx.state) == 0
    assert PersonalStore(ctx, tmp_path, "run").load("u", 1)["head"][0] == 1
    PersonalStore(ctx, None, "run", in_context=False).save("u", 2, head(2), set())
    assert len(ctx.state) == 1  # there is no other place


def test_a_damaged_file_is_a_lost_state(tmp_path: Path) -> None:
    PersonalStore(context(), tmp_path, "run").save("u", 1, head(1), set())
    next(tmp_path.rglob("*.safetensors")).write_bytes(b"garbage")
    with pytest.raises(StateLost, match="restore"):
        PersonalStore(context(), tmp_path, "run").load("u", 1)


@given(st.lists(st.text(min_size=1), unique=True, min_size=2, max_size=8))
def test_names_of_folders_are_distinct_and_safe(users: list[str]) -> None:
    names = [safe_name(user) for user in users]
    assert len({name.lower() for name in names}) == len(users)
    for name in names:
        assert "/" not in name
        assert "\\" not in name
        assert "\0" not in name
        assert not name.startswith(".")
        assert len(name.encode()) < 255
