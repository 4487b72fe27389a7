"""Hostile messages by the hundred, and such as hypothesis makes: a device takes no harm."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message

from corsage.app.nodes import answers
from corsage.app.nodes.places import Places
from corsage.benchmarks.device.attacks import Attack, attack
from corsage.benchmarks.device.messages import ALL, honest
from corsage.benchmarks.device.target import SECRET, Target


@pytest.fixture(scope="module", params=[False, True], ids=["alone", "worker"])
def struck(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Target]:
    """One device for many attacks, without and with a resident worker."""
    target = Target(tmp_path_factory.mktemp("struck"), request.param)
    for number in range(7):  # torch makes a folder of its own when it loads what these need
        target.ask(honest("convex-clustering", "train", number).message())
    here = Path.cwd()
    os.chdir(target.outside)
    yield target
    os.chdir(here)
    assert not target.wrong and target.lives()


@pytest.mark.parametrize("part", range(2))
def test_hostile_messages_do_no_harm(struck: Target, part: int) -> None:
    """100 each, of all algorithms and kinds; 10,000: `python -m corsage.benchmarks fuzz-device`."""
    first = 100 * (part + 2 * struck.resident)
    for number in range(first, first + 100):
        struck.strike(attack(0, number, str(struck.outside)))
    assert not struck.wrong
    assert struck.refused > 0 and struck.answered > 0


def test_without_its_guard_a_device_obeys(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same attacks do harm, and the watch sees it: it is the guard that keeps them out."""
    monkeypatch.setattr(answers, "is_device", lambda context: False)
    for place in ("states", "models"):
        monkeypatch.setattr(Places, place, lambda *_: None)
    draft = honest("fedavg", "train")
    draft.settings["keys"]["model"] = "planted:leak"
    target.strike(Attack("code", draft.message()))
    draft.settings["keys"] |= {"cluster-map": str(target.outside / "secret.json"), "model": "mlp"}
    target.strike(Attack("file", draft.message()))
    for what in ("imports planted", f"open {target.outside / 'secret.json'}", SECRET):
        assert any(what in line for line in target.wrong)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=5,
)


@hypothesis.settings(max_examples=80)
@hypothesis.given(data=st.data())
def test_any_setting_may_be_anything(struck: Target, data: st.DataObject) -> None:
    draft = honest(data.draw(st.sampled_from(ALL)), data.draw(st.sampled_from(["train", "query"])))
    for _ in range(data.draw(st.integers(1, 3))):
        where = data.draw(st.sampled_from([draft.settings, draft.settings["keys"]]))
        where[data.draw(st.sampled_from(sorted(where)))] = data.draw(VALUES)
        if not (keys := draft.settings.get("keys")) or not isinstance(keys, dict):
            break
    content = draft.content()
    struck.strike(Attack(json.dumps(draft.settings)[:300], Message(content, 1, draft.kind)))
    assert not struck.wrong


@hypothesis.settings(max_examples=60)
@hypothesis.given(data=st.data())
def test_any_record_may_be_anything(struck: Target, data: st.DataObject) -> None:
    """What Flower lets through: scalars and lists of one kind."""
    whole = st.integers(-(2**63), 2**63 - 1)
    kinds = (whole, st.floats(), st.text(max_size=20), st.booleans(), st.binary(max_size=20))
    lists = [st.lists(kind, min_size=1, max_size=4) for kind in kinds]
    draft = honest(data.draw(st.sampled_from(ALL)), data.draw(st.sampled_from(["train", "query"])))
    content = draft.content()
    record = content["config"]
    assert isinstance(record, ConfigRecord)
    for name in data.draw(st.lists(st.sampled_from(sorted(record)), min_size=1, max_size=3)):
        record[name] = data.draw(st.one_of(*kinds, *lists))
    struck.strike(Attack(str(dict(record))[:300], Message(content, 1, draft.kind)))
    assert not struck.wrong


@hypothesis.settings(max_examples=60)
@hypothesis.given(data=st.binary(max_size=400), shape=st.lists(st.integers(-5, 10**6), max_size=4))
def test_arrays_may_be_any_bytes(struck: Target, data: bytes, shape: list[int]) -> None:
    content = honest("fedavg", "train").content()
    arrays = content["arrays"]
    assert isinstance(arrays, ArrayRecord)
    array = arrays["model"]
    array.data, array.shape = data, tuple(shape)
    struck.strike(Attack(f"{data!r} {shape}", Message(content, 1, "train")))
    array.shape, array.data = (38,), array.data + bytes(np.zeros(38, np.float32))
    struck.strike(Attack(f"{data!r} {shape}", Message(content, 1, "train")))
    assert not struck.wrong
