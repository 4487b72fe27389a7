"""Whatever a node replies, the server neither falls nor takes over what is no number.

`python -m corsage.benchmarks fuzz` does the same, longer.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corsage.benchmarks.fuzz.attacks import Attack, attacks
from corsage.benchmarks.fuzz.command import main, played, target
from corsage.benchmarks.fuzz.cost import peak_ratio
from corsage.benchmarks.fuzz.target import Target, unpacked
from corsage.core.messages.fields import columns_of
from corsage.core.messages.replies import Reply
from tests.support.federations import KINDS

known = cache(target)


def test_hundreds_of_hostile_replies_to_strategies_of_every_kind() -> None:
    targets, seen, verdicts = [known(name) for name in KINDS], set[str](), Counter[str]()
    for one, attack, outcome in played(targets, 700, seed=0):
        assert not outcome.bad, (one.name, attack.name, outcome)
        assert outcome.verdict != "failed", (one.name, attack.name, outcome)
        seen.add(attack.name)
        verdicts[outcome.verdict] += 1
    assert len(seen) > 0.75 * len(attacks())
    assert verdicts["dropped"] > 490


def test_what_is_hostile_is_told_from_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fuzzer sees a server that believes too much: without the check of numbers."""
    from corsage.core.counts import Number

    monkeypatch.setattr(Number, "wrong", lambda self, values, samples: np.zeros(len(values), bool))
    attack = next(a for a in attacks() if a.name == "cluster 1000000000.0")
    found = [known("ifca").attacked(attack, np.random.default_rng(i)) for i in range(4)]
    assert any(outcome is not None and outcome.bad for outcome in found)


def test_a_command_does_more_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("corsage.benchmarks.fuzz.command.ALGORITHMS", {"fedavg": None})
        assert main(["--attacks", "30", "--seed", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("fedavg") and lines[2].startswith("all")
    assert "peak memory" in lines[3] and "a message" in lines[4]


def test_hostile_arrays_take_no_memory() -> None:
    assert peak_ratio(50_000)[0] < 2


# Hypothesis: whatever Flower can carry.

WORDS = st.text(max_size=8) | st.sampled_from(["0", "1", "7", "recorded", "model"])
SCALARS: Any = st.integers(-(2**63), 2**64 - 1) | st.floats()
VALUES: Any = SCALARS | st.lists(st.floats(), max_size=3) | st.lists(st.integers(-9, 9), max_size=3)
TEXTS: Any = VALUES | WORDS | st.binary(max_size=8) | st.booleans() | st.lists(WORDS, max_size=3)
FIELDS = st.sampled_from([*sorted(columns_of(Reply)), "num-examples", "loss", "correct"])
RECORDS = st.sampled_from(["config", "metrics", "arrays", "rows"])
RECORD = st.dictionaries(FIELDS, TEXTS, max_size=4).map(ConfigRecord) | st.dictionaries(
    FIELDS, VALUES, max_size=4
).map(MetricRecord)


def changing(changes: dict[str, Any], records: dict[str, Any]) -> Attack:
    """Some fields of a good reply, and then whole records."""

    def change(content: RecordDict, rng: np.random.Generator) -> None:
        for name, value in changes.items():
            for record in (content["config"], content["metrics"]):
                if name in record or isinstance(record, ConfigRecord):
                    with pytest.MonkeyPatch.context():
                        try:
                            record[name] = value
                        except TypeError:
                            continue  # not a value of such a record
        for name, record in records.items():
            content.pop(name, None)
            content[name] = record

    return Attack("hypothesis", change, legal=True)


@pytest.mark.parametrize("name", ["fedavg", "ifca", "mixed-model", "convex-clustering"])
@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(
    changes=st.dictionaries(FIELDS, TEXTS, max_size=3),
    records=st.dictionaries(RECORDS, RECORD, max_size=1),
    seed=st.integers(0, 99),
)
def test_whatever_flower_carries(
    name: str, changes: dict[str, Any], records: dict[str, Any], seed: int
) -> None:
    outcome = known(name).attacked(changing(changes, records), np.random.default_rng(seed))
    assert outcome is None or not outcome.bad, outcome


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(place=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255), seed=st.integers(0, 99))
def test_any_byte_of_an_array(place: float, byte: int, seed: int) -> None:
    """A byte of a number may make another number; one of its header may not."""

    def change(content: RecordDict, rng: np.random.Generator) -> None:
        record = next(r for r in content.values() if isinstance(r, ArrayRecord))
        name = next(iter(record))
        data = bytearray(record[name].data)
        data[int(place * len(data))] = byte
        record[name].data = bytes(data)

    one: Target = known("fedavg")
    attack = Attack("a byte", change, legal=True, kind="train")
    outcome = one.attacked(attack, np.random.default_rng(seed))
    assert outcome is not None and not outcome.bad, outcome


def test_recorded_replies_are_what_nodes_send() -> None:
    content = unpacked(known("fedavg").parts[0].replies[0][0])
    assert set(content) == {"arrays", "metrics", "config"}
