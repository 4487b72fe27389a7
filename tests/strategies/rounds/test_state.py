"""States taken apart for a checkpoint and put together again."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as tried
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from corsage.app.run.checkpoint import read_checkpoint, write_checkpoint
from corsage.core.arrays import Array, Floats, Floats32, Ints
from corsage.core.errors import CheckpointError
from corsage.strategies.rounds.ledger import Crowd, Ledger
from corsage.strategies.rounds.state import Built, Progress, Traffic, arrays_of, restored, stored


@dataclass
class Pair:
    """The inner part; one of its fields is called as the mark of arrays is."""

    array: int
    rows: Floats


@dataclass
class Only:
    """One field alone, of that name."""

    array: str


@dataclass
class Whole:
    """Every kind of field that a state may have."""

    model: Floats32
    labels: Ints
    pair: Pair
    only: Only
    maybe: Floats32 | None
    perhaps: Pair | None
    number: float
    words: list[str]
    flag: bool
    value: float | str
    counts: dict[int, list[float]]
    own: dict[str, Array]
    parts: dict[str, Pair]
    trained: set[str]
    frozen: frozenset[int]
    curve: list[tuple[int, float]]
    shape: tuple[int, ...]
    mixed: tuple[str, Floats | None, Pair]
    deep: dict[int, dict[str, Only]] = field(default_factory=dict)
    dotted: dict[str, dict[str, Array]] = field(default_factory=dict)

    @cached_property
    def size(self) -> Array:
        """Computed, and no field."""
        return np.zeros(7)


def array_of(dtype: Any) -> st.SearchStrategy[Array]:
    return arrays(dtype, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))


TEXT = st.text(max_size=5)
FLOAT = st.floats(allow_nan=False)
ROUND = st.integers(0, 2**63 - 1)
PAIR = st.builds(Pair, st.integers(), array_of(np.float64))
ONLY = st.builds(Only, TEXT)
WHOLE = st.builds(
    Whole,
    model=array_of(np.float32),
    labels=array_of(np.int64),
    pair=PAIR,
    only=ONLY,
    maybe=st.none() | array_of(np.float32),
    perhaps=st.none() | PAIR,
    number=FLOAT,
    words=st.lists(TEXT, max_size=3),
    flag=st.booleans(),
    value=FLOAT | TEXT,
    counts=st.dictionaries(st.integers(), st.lists(FLOAT, max_size=2), max_size=3),
    own=st.dictionaries(TEXT, array_of(np.bool_), max_size=3),
    parts=st.dictionaries(TEXT, PAIR, max_size=3),
    trained=st.sets(TEXT, max_size=3),
    frozen=st.frozensets(st.integers(), max_size=3),
    curve=st.lists(st.tuples(st.integers(), FLOAT), max_size=3),
    shape=st.lists(st.integers(), max_size=3).map(tuple),
    mixed=st.tuples(TEXT, st.none() | array_of(np.float64), PAIR),
    deep=st.dictionaries(st.integers(), st.dictionaries(TEXT, ONLY, max_size=2), max_size=2),
    dotted=st.dictionaries(
        st.sampled_from(["a", "a.b", "a'"]),
        st.dictionaries(st.sampled_from(["c", "b.c", "c'"]), array_of(np.float32), max_size=3),
        max_size=3,
    ),
)


def same(one: Any, other: Any) -> bool:
    """Equal in type and value all the way down; arrays to the bit, dictionaries in their order."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return bool(alike and one.tobytes() == other.tobytes())
    if is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@tried(max_examples=200, deadline=None)
@given(WHOLE)
def test_what_is_taken_apart_is_put_together_as_it_was(state: Whole) -> None:
    assert len(state.size) == 7  # what is computed is neither kept nor in the way
    plain, named = stored(state)
    plain = json.loads(json.dumps(plain))
    assert same(restored(Whole, plain, named), state)


@tried(max_examples=25, deadline=None)
@given(WHOLE, st.builds(Traffic, st.integers(0, 2**40)), st.dictionaries(TEXT, ROUND))
def test_a_checkpoint_holds_it(
    tmp_path_factory: pytest.TempPathFactory, state: Whole, traffic: Traffic, seen: dict[str, int]
) -> None:
    path = tmp_path_factory.mktemp("state") / "checkpoint"
    versions, trained = Ledger(seen), Crowd(seen)
    where = Progress(round=3, versions=versions, trained=trained)
    where.curve = [(1, 0.5), (3, 0.1 + 0.2)]
    parts = {"progress": where, "traffic": traffic, "built": Built((1, 2)), "state": state}
    write_checkpoint(path, parts, {"run": 1})
    kinds = {name: type(part) for name, part in parts.items()}
    assert same(read_checkpoint(path, {"run": 1}, kinds), parts)


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    """As most of what a solver returns; JSON does not take them."""
    state = Traffic(bytes_up=np.int64(5), messages=np.int64(2))  # type: ignore[arg-type]
    where = Progress(seconds=np.float64(1.5), trained=Crowd([np.str_("a")]))
    where.versions = Ledger({np.str_("a"): np.int32(3)})  # type: ignore[dict-item]
    write_checkpoint(tmp_path / "c", {"progress": where, "traffic": state}, {})
    again = read_checkpoint(tmp_path / "c", {}, {"progress": Progress, "traffic": Traffic})
    assert same(again["traffic"], Traffic(bytes_up=5, messages=2))
    assert same(
        again["progress"], Progress(seconds=1.5, trained=Crowd("a"), versions=Ledger({"a": 3}))
    )


def test_fields_that_are_not_its_own_are_named_in_one_line() -> None:
    plain, named = stored(Pair(1, np.zeros(2)))
    for changed, wrong in (
        ({**plain, "speed": 1}, "speed"),
        ({"array": 1}, "rows"),
        ({"array": 1, "columns": {}}, "columns, rows"),
    ):
        with pytest.raises(CheckpointError) as caught:
            restored(Pair, changed, named)
        assert str(caught.value) == f"Pair: written by another version ({wrong})."
    with pytest.raises(CheckpointError, match=r"^Traffic: written by another version \(bytes\)\.$"):
        plain, arrays = stored(Traffic())
        restored(Traffic, {**plain, "bytes": 1}, arrays)


def test_the_arrays_of_a_state_are_its_fields() -> None:
    pair = Pair(1, np.ones(2))
    assert list(arrays_of(pair)) == ["rows"]
