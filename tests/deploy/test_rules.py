"""What devices rely on, on nodes in this process: no processes, so quick."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.app.nodes import answers
from corsage.app.nodes.node import Node, Nodes
from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError, NodeError
from corsage.core.known_devices import KnownDevices
from corsage.core.messages.wire import Task, encode_task
from corsage.strategies.devices import devices as devices_of
from corsage.strategies.devices.exchange import exchange
from corsage.strategies.rounds.agreed import Agreed
from corsage.strategies.rounds.reception import Reception
from corsage.strategies.rounds.roster import Roster
from tests.support.clock import Clock, stopped
from tests.support.silent import Devices, played, usual

DEAD = 12345


def question() -> ConfigRecord:
    return encode_task(Task("fedavg", "e", 0, (), 0, num_users=4))


class Mourning(LocalGrid):
    """Two living nodes, and one that the SuperLink still lists or answers for itself."""

    def __init__(self, listed: bool = True) -> None:
        super().__init__(app, 2)
        self.listed, self.orphans = listed, dict[str, Message]()

    def get_node_ids(self) -> Iterable[int]:
        return [*super().get_node_ids(), DEAD]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        ids = list(super().push_messages(messages))
        lost = {i: m for i, m in zip(ids, messages, strict=True) if m.metadata.dst_node_id == DEAD}
        self._queue = type(self._queue)(m for m in self._queue if m not in lost.values())
        self.orphans |= lost
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        wanted = list(message_ids)
        found = [self.orphans.pop(i) for i in wanted if i in self.orphans and not self.listed]
        replies = [Message(Error(3, "Node Unavailable"), reply_to=message) for message in found]
        for reply in replies:
            reply.metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID
        return [*replies, *super().pull_messages(wanted)]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return stopped(monkeypatch)


def test_the_word_of_the_superlink_is_no_reply_of_the_node() -> None:
    grid = Mourning(listed=False)
    questions = [Message(RecordDict(), node, "query") for node in grid.get_node_ids()]
    replies, silent = exchange(grid, questions, 30)
    assert len(replies) == 2 and silent == [DEAD]


def at_the_door(grid: LocalGrid, roster: Roster) -> Reception:
    """Devices come in."""
    config = Config.parse()
    devices = devices_of.Devices(grid, config.federation, roster, KnownDevices(), roster.note)
    return Reception(roster, Agreed(config), devices)


@pytest.mark.parametrize("listed", [True, False])
def test_a_dead_node_does_not_end_a_run_that_begins(listed: bool) -> None:
    notes: list[str] = []
    roster = Roster(note=notes.append)
    grid = Mourning(listed)
    at_the_door(grid, roster).wait(grid, 2, 0.3, task=question)
    assert roster.users == ["0", "1", "2", "3"] and DEAD not in roster.nodes
    assert notes == [f"node {DEAD} is left out: did not say who its users are in time"]


@pytest.mark.parametrize("lost", [1, 5, 6])
@pytest.mark.parametrize("patience", [3.0, 0.0])
def test_nodes_whose_first_question_is_lost_are_asked_again(lost: int, patience: float) -> None:
    """The run begins, and is the one in which nothing was lost; if all were, too."""

    def deaf(number: int, kind: str, before: int) -> float | None:
        return None if number < lost and kind == "query" and not before else usual(number, kind, 0)

    seconds, strategy, result, grid = played(deaf, num_rounds=2, patience=patience)
    honest = played(usual, num_rounds=2, patience=patience)
    assert honest[0] + 25 < seconds < honest[0] + 35 and strategy.progress.dropped == {}
    assert result.summaries[0].per_user == honest[2].summaries[0].per_user
    assert grid.asked.count((0, "query")) == 2 and len(grid.asked) == len(honest[3].asked) + lost


def test_who_never_answers_is_asked_seldom_and_not_once_the_run_can_begin(clock: Clock) -> None:
    times: list[float] = []

    def stone(number: int, kind: str, before: int) -> float | None:
        times.extend([clock.now] * (number == 0))
        return None if number == 0 else usual(number, kind, before)

    with pytest.raises(NodeError, match=r"only 5 of 6 nodes answered within 600 s: see the logs"):
        at_the_door(grid := Devices(clock, 6, stone), Roster()).wait(grid, 6, 600, task=question)
    assert times == pytest.approx([0, 30, 90, 210, 450], abs=5)
    assert len(grid.asked) == 5 + len(times)
    at_the_door(grid := Devices(clock, 6, stone), Roster()).wait(grid, 5, 600, task=question)
    assert len(grid.asked) == 6


@pytest.mark.parametrize("second", [0.0, 9.0])
def test_a_node_that_answers_twice_is_let_in_once(clock: Clock, second: float) -> None:
    """By the answer to its first question, late as it is; the second's, if it comes, is let lie."""

    def slow(number: int, kind: str, before: int) -> float | None:
        return (second if before else 40.0) if number == 0 else usual(number, kind, before)

    notes: list[str] = []
    reception = at_the_door(grid := Devices(clock, 6, slow), Roster(note=notes.append))
    reception.wait(grid, 6, 60, task=question)
    devices, roster = reception.devices, reception.roster
    assert len(roster.nodes) == 6 and devices and 40 <= clock.now < 42
    assert grid.asked.count((0, "query")) == 2 and len(notes) == 4
    assert all(map(str.count, notes, ("left out", "5 of 6", "asked again", "says who")))
    assert devices.patience.given_up(clock.now) == []
    clock.sleep(60)
    reception.refresh(grid, 60, 1, question)
    assert len(grid.asked) == 7 and len(grid._due) == (second > 0) and len(notes) == 4


@pytest.fixture
def device(tmp_path: Path) -> dict[str, Any]:
    """The node config of a device that has seen classes 0 and 1."""
    numbers = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    np.savez(tmp_path / "own.npz", x=numbers, label=np.arange(50) % 2)
    return {"data": str(tmp_path / "own.npz"), "user": "ann"}


def opened(device: dict[str, Any], **keys: Any) -> Node:
    config = Config.parse({k.replace("_", "-"): v for k, v in keys.items()})
    task = Task(
        "fedavg", "e", config.run.seed, (), 0, data=config.data, device_data=config.device_data
    )
    return Nodes().of(Context(1, 2, device, RecordDict(), {}), task)


def test_a_device_reads_its_file_as_the_run_says(device: dict[str, Any]) -> None:
    """What counts are the keys in the message: Flower's run config of a resumed run has others."""
    first = opened(device, seed=7, test_fraction=0.4).data["ann"]
    again = opened(device, seed=7, test_fraction=0.4, data_dir="/nowhere").data["ann"]
    assert len(first.y_test) == 20
    assert np.array_equal(first.x_test, again.x_test)
    assert len(opened(device).data["ann"].y_test) == 10


def test_keys_of_files_are_for_devices(device: dict[str, Any]) -> None:
    """Whatever data set the run names; a simulated node, which has no file, refuses them."""
    columns = {"label_column": "mine", "labels": "numbers", "dataset": "ellipses"}
    numbers = np.random.default_rng(0).normal(size=(50, 3))
    np.savez(device["data"], x=numbers, mine=numbers[:, 0])
    assert opened(device, **columns).data.num_classes == 0
    with pytest.raises(ConfigError, match="label-column=mine: dataset=ellipses has no use for it"):
        opened({"partition-id": 0, "num-partitions": 1}, label_column="mine", dataset="ellipses")


def test_the_devices_own_words_win(device: dict[str, Any]) -> None:
    assert len(opened({**device, "test-fraction": 0.5}).data["ann"].y_test) == 25
    with pytest.raises(ConfigError, match="colour: unknown"):
        opened({**device, "colour": "red"})


def test_a_device_may_know_of_more_classes(device: dict[str, Any]) -> None:
    assert opened(device).data.num_classes == 2
    assert opened({**device, "num-classes": 10}).data.num_classes == 10
    with pytest.raises(ConfigError, match="num-classes=1"):
        opened({**device, "num-classes": 1})


@pytest.mark.parametrize("version", ["1.41.0", "1.999.0"])
def test_a_device_says_it_if_its_flower_was_not_tested(
    device: dict[str, Any], version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its own log, when a run introduces itself; a simulated node leaves it to the server."""
    lines: list[str] = []
    monkeypatch.setattr(metadata, "version", {"flwr": version}.__getitem__)
    monkeypatch.setattr(answers, "log", lambda level, line: lines.append(line))
    for node_config in (device, {"partition-id": 0, "num-partitions": 1}):
        message = Message(RecordDict({"config": question()}), 1, "query")
        context = Context(1, 2, node_config, RecordDict(), {})
        assert not answers.Answers().answer("query", message, context).has_error()
    assert ["1.999.0 was not tested" in line for line in lines] == [True] * (version == "1.999.0")
