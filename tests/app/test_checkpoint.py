"""Checkpoints come back whole, or are refused with a reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corsage.app.checkpoint import read_checkpoint, write_checkpoint
from corsage.core.errors import CheckpointError
from corsage.strategies.rounds.state import State, Traffic

ME = {"run": "a", "seed": 0}


def state() -> State:
    return State(
        round=7,
        arrays={"body": np.arange(5, dtype=np.float32), "dual": np.ones((2, 3))},
        scalars={"coins": [1, 0, 1]},
        versions={"u": 7},
        drawn={"u": 2, "v": 1},
        dropped={"w": 1},
        curve=[(5, 0.25), (7, 0.5)],
        traffic=Traffic(1, 2, 3, 4, 5, 6, 7),
        seconds=1.5,
    )


def test_the_whole_state_comes_back(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c", state(), ME)
    back = read_checkpoint(tmp_path / "c", ME)
    assert back.plain() == state().plain()
    for name, array in state().arrays.items():
        assert back.arrays[name].dtype == array.dtype
        assert np.array_equal(back.arrays[name], array)


def test_arrays_keep_their_order(tmp_path: Path) -> None:
    """Clients take what they are sent in this order."""
    names = ["model", "variate", "body", "a", "z", "b", "y"]
    arrays = {name: np.zeros(2, np.float32) for name in names}
    write_checkpoint(tmp_path / "c", State(arrays=arrays), ME)
    for _ in range(5):
        assert list(read_checkpoint(tmp_path / "c", ME).arrays) == list(arrays)


def test_a_state_without_arrays_too(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c", State(round=1), ME)
    assert read_checkpoint(tmp_path / "c", ME).arrays == {}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.integers(1, 255))
def test_any_changed_byte_is_noticed(tmp_path: Path, place: int, change: int) -> None:
    path = tmp_path / "c"
    write_checkpoint(path, state(), ME)
    raw = bytearray(path.read_bytes())
    raw[place % len(raw)] ^= change
    path.write_bytes(bytes(raw))
    with pytest.raises(CheckpointError, match="damaged"):
        read_checkpoint(path, ME)


def test_a_cut_an_absent_and_a_foreign_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_checkpoint(path, ME)
    write_checkpoint(path, state(), ME)
    with pytest.raises(CheckpointError, match="of another run: seed was 0, now 1"):
        read_checkpoint(path, {**ME, "seed": 1})
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="damaged"):
        read_checkpoint(path, ME)
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="damaged"):
        read_checkpoint(path, ME)
