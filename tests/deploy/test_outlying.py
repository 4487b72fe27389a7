"""Devices that say of their tables what would spoil what all agree on, or end the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from corsage.core.configuration.config import Config
from corsage.core.errors import DataError
from corsage.core.tables.agreement import Policy
from corsage.core.tables.column_facts import ColumnFacts, Moments, TableFacts
from corsage.strategies import strategy_class
from corsage.strategies.devices.standing import outlying
from tests.support.devices import Devices
from tests.support.federations import Notes

Facts = list[list[Any]]
LABEL, NUMBERS, WORDS = 0, 1, 2
LEVELS, COUNT, MEAN = 2, 4, 5


def lines(labels: str) -> str:
    """Five users with eight rows each."""
    rows = [
        f"u{i % 5},{i / 7},{'xyz'[i % 3]},{(i % 2) + 0.5 * (labels == 'numbers')}"
        for i in range(40)
    ]
    return "\n".join(["user,a,c,label", *rows])


class Lying(Devices):
    """Of five devices the last one says something else of its table."""

    def __init__(self, folder: Path, config: Config, lie: Callable[[Facts], None]) -> None:
        super().__init__(folder, config)
        self.lie, self.last = lie, [*super().get_node_ids()][-1]

    def _work(self, message: Message) -> Message:
        reply = super()._work(message)
        if message.metadata.message_type == "query" and message.metadata.dst_node_id == self.last:
            said = json.loads(reply.content["config"]["table"])
            self.lie(said)
            reply.content["config"]["table"] = json.dumps(said)
        return reply


def words(column: int, count: int) -> Callable[[Facts], None]:
    """A thousand words, say, that nobody else has."""

    def lie(said: Facts) -> None:
        said[column][1] = "category"
        said[column][LEVELS] = [f"w{i}" for i in range(count)]

    return lie


def huge(column: int) -> Callable[[Facts], None]:
    """One number that is larger than all others by far."""

    def lie(said: Facts) -> None:
        said[column][COUNT:] = [1, 1e300, 0.0]

    return lie


@pytest.mark.parametrize(
    ("labels", "lie", "why"),
    [
        ("classes", words(WORDS, 1000), "it has 1,000 words that few others have"),
        ("numbers", words(WORDS, 998), "it has 998 words that few others have"),
        ("numbers", huge(LABEL), "its column 'label' has numbers of the size 1e+300"),
        ("numbers", huge(NUMBERS), "its column 'a' has numbers of the size 1e+300"),
    ],
)
def test_one_device_neither_ends_nor_spoils_the_start(
    tmp_path: Path, labels: str, lie: Callable[[Facts], None], why: str
) -> None:
    """It is left out of what is agreed on, and named."""
    (tmp_path / "all.csv").write_text(lines(labels))
    keys = {
        "dataset": "csv", "data-file": str(tmp_path / "all.csv"), "labels": labels,
        "model": "linear", "num-rounds": 1, "fraction-train": 1.0, "missing": "flag",
        "cache-dir": str(tmp_path / "cache"), "strategy": "fedavg",
    }  # fmt: skip
    config = Config.parse(keys)
    notes = Notes()
    strategy = strategy_class("fedavg")(config, [notes])
    strategy.start(Lying(tmp_path, config, lie))
    agreed = strategy.job.agreed.preparation
    assert len(agreed.features) == 3 and abs(agreed.shift[0]) < 10 and abs(agreed.label.mean) < 10
    assert sum(f"is left out: {why}" in note for note in notes.notes) == 1


def table(*levels: str, size: float = 1.0, label: tuple[str, ...] = ()) -> TableFacts:
    kind = "category" if label else "number"
    numbers = ColumnFacts("a", moments=Moments(3, size, size))
    return TableFacts(
        (numbers, ColumnFacts("c", "category", levels)), ColumnFacts("y", kind, label)
    )


MANY = tuple(f"w{i}" for i in range(900))


def test_who_is_outlying() -> None:
    """A minority is, also if it tells the same lie; words that many have are nobody's fault."""
    good = table("x", "y")
    assert outlying({}) == {} and outlying({1: good, 2: table(size=1e300)}) == {}
    assert list(outlying({1: good, 2: good, 3: table(size=1e8)})) == [3]
    assert outlying({1: good, 2: table(size=1e5), 3: table(size=1e-300)}) == {}
    together = dict.fromkeys(range(5), good) | {7: table(*MANY)}
    assert outlying(together) == {}
    liars = {n: table(*MANY, *(f"{n}{i}" for i in range(120))) for n in (8, 9)}
    assert sorted(outlying({**together, **liars})) == [8, 9]
    each = {n: table(*(f"{n}-{i}" for i in range(400))) for n in range(4)}
    assert len(outlying(each)) == 0


def test_what_is_too_much_for_a_model_is_known_before_it_is_built() -> None:
    said = [table(label=tuple(f"k{n}-{i}" for i in range(600))) for n in range(2)]
    with pytest.raises(DataError, match=r"'y': 1200 different words, .* the right label-column"):
        Policy().agree(said, num_classes=2)
    wide = [
        TableFacts(tuple(ColumnFacts(f"c{i}", "category", MANY) for i in range(112)), said[0].label)
    ]
    with pytest.raises(DataError, match="the table has 100800 inputs"):
        Policy().agree(wide, num_classes=2)
