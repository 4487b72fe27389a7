"""Checkpoints come back whole, or are refused with a reason."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from corsage.app.run.checkpoint import (
    Checkpoints,
    checkpoint_of,
    found,
    go_back,
    read_checkpoint,
    write_checkpoint,
)
from corsage.core.arrays import Floats, Floats32
from corsage.core.errors import CheckpointError
from corsage.strategies.rounds.ledger import Crowd, Ledger
from corsage.strategies.rounds.state import NoState, Progress, Traffic

ME = {"run": "a", "seed": 0}
PROGRESS = Progress(
    round=7,
    versions=Ledger({"u": 7}),
    trained=Crowd(["u", "v"]),
    dropped={"w": 1},
    curve=[(5, 0.25), (7, 0.5)],
    seconds=1.5,
)
TRAFFIC = Traffic(1, 2, 3, 4, 5, 6, 7)


@dataclass
class Duals:
    """A part of a state."""

    z: Floats
    rho: float
    edges: list[tuple[str, str]]


@dataclass
class Kept:
    """What some algorithm remembers."""

    body: Floats32
    duals: Duals | None
    norms: dict[int, list[float]] = field(default_factory=dict)
    centres: dict[str, Floats] = field(default_factory=dict)
    label: str | None = None


def kept() -> Kept:
    duals = Duals(np.ones((2, 3)), 0.5, [("a", "b"), ("a", "c.d")])
    centres = {"north": np.zeros(2), "a.b": np.ones(1)}
    return Kept(np.arange(5, dtype=np.float32), duals, {3: [1.0, 2.0]}, centres)


KINDS = {"progress": Progress, "traffic": Traffic, "state": Kept}


def parts(**changed: Any) -> dict[str, Any]:
    return {"progress": PROGRESS, "traffic": TRAFFIC, "state": kept(), **changed}


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal in types and contents, arrays bit for bit."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if is_dataclass(one):
        return type(one) is type(other) and same(vars(one), vars(other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    return type(one) is type(other) and one == other


def written(path: Path) -> Path:
    write_checkpoint(path, parts(), ME)
    return path


def test_all_of_it_comes_back_field_by_field(tmp_path: Path) -> None:
    assert same(read_checkpoint(written(tmp_path / "c"), ME, KINDS), parts())


def test_a_state_without_arrays_or_fields_too(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c", {"state": NoState()}, ME)
    assert read_checkpoint(tmp_path / "c", ME, {"state": NoState}) == {"state": NoState()}


def test_a_part_that_is_not_there_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="written by another version of Corsage"):
        read_checkpoint(written(tmp_path / "c"), ME, {**KINDS, "more": Traffic})


def test_fields_of_another_version_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"c: NoState: written by another version \(body, "):
        read_checkpoint(written(tmp_path / "c"), ME, {"state": NoState})


def test_a_checkpoint_of_before_the_floors_is_refused_in_one_line(tmp_path: Path) -> None:
    head = json.dumps({"format": "corsage-checkpoint-1", "identity": ME, "state": {}}).encode()
    payload = struct.pack("<Q", len(head)) + head + save({})
    digest = hashlib.blake2b(payload, digest_size=32).digest()
    (tmp_path / "c").write_bytes(digest + payload)
    with pytest.raises(CheckpointError, match="written by another version of Corsage") as found:
        read_checkpoint(tmp_path / "c", ME, {"state": NoState})
    assert "\n" not in str(found.value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.integers(1, 255))
def test_any_changed_byte_is_noticed(tmp_path: Path, place: int, change: int) -> None:
    path = tmp_path / "c"
    written(path)
    raw = bytearray(path.read_bytes())
    raw[place % len(raw)] ^= change
    path.write_bytes(bytes(raw))
    with pytest.raises(CheckpointError, match="damaged"):
        read_checkpoint(path, ME, KINDS)


def test_a_cut_an_absent_and_a_foreign_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_checkpoint(path, ME, KINDS)
    written(path)
    with pytest.raises(CheckpointError, match="of another run: seed was 0, now 1"):
        read_checkpoint(path, {**ME, "seed": 1}, KINDS)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="damaged"):
        read_checkpoint(path, ME, KINDS)
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="damaged"):
        read_checkpoint(path, ME, KINDS)


def test_one_that_is_not_finite_is_skipped(tmp_path: Path) -> None:
    """Of the last three the newest sane one is used; the notes say what was skipped."""
    notes: list[str] = []
    for number in (1, 2, 3, 4):
        state = kept()
        state.body[0] = np.nan if number == 4 else number
        Checkpoints(tmp_path, ME, note=notes.append).write(number, parts(state=state))
    for number in (1, 2, 3):
        own = parts(progress=replace(PROGRESS, round=number))
        write_checkpoint(checkpoint_of(tmp_path, number), own, ME)
    sane = list(Checkpoints(tmp_path, ME, note=notes.append).sane(KINDS))
    assert [number for number, _ in sane] == [3, 2, 1]
    assert [own["progress"].round for _, own in sane] == [3, 2, 1]
    (note,) = notes
    assert note.startswith("checkpoint-000004 is skipped: ")
    assert "body is not finite" in note


def test_to_go_back_is_to_have_no_later_ones(tmp_path: Path) -> None:
    for number, left in ((6, [4, 5, 6]), (5, [4, 5]), (4, [4]), (0, [])):
        for later in (4, 5, 6):
            checkpoint_of(tmp_path, later).touch()
        go_back(tmp_path, number)
        assert [round for round, _ in found(tmp_path)] == left
