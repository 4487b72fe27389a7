"""Waiting is bounded; nodes that leave, come back or never come are noticed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from corsage.app.local_grid import LocalGrid
from corsage.core.configuration.config import Config
from corsage.core.errors import DataError, NodeError
from corsage.strategies.devices.exchange import PRESENCE_SECONDS, exchange
from corsage.strategies.rounds import reception
from corsage.strategies.rounds.agreed import Agreed
from corsage.strategies.rounds.reception import Reception
from corsage.strategies.rounds.roster import Roster
from tests.support.clock import Clock, stopped
from tests.support.federations import Notes


class Fleet(LocalGrid):
    """Nodes that host what the test says; `deaf` ones never reply, `gone` ones are not listed."""

    def __init__(self, hosts: list[dict[str, Any]]) -> None:
        app = ClientApp()

        @app.query()
        def query(message: Message, context: Any) -> Message:
            host = hosts[context.node_config["partition-id"]]
            users = host["users"]
            config = ConfigRecord(
                {
                    "users": users,
                    "clusters": [""] * len(users),
                    "input-shape": list(host.get("shape", (4,))),
                    "num-classes": host.get("classes", 2),
                }
            )
            numbers = {"train": [host.get("train", 9)] * len(users), "test": [3] * len(users)}
            content = RecordDict({"config": config, "metrics": MetricRecord(numbers)})
            return Message(content, reply_to=message)

        super().__init__(app, len(hosts))
        self.deaf: set[int] = set()
        self.gone: set[int] = set()
        self.ids = list(super().get_node_ids())

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in super().get_node_ids() if node not in self.gone]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        ids = list(super().push_messages(messages))
        deaf = {m.metadata.message_id for m in messages if m.metadata.dst_node_id in self.deaf}
        self._queue = type(self._queue)(m for m in self._queue if m.metadata.message_id not in deaf)
        return ids


def fleet(*groups: list[str], **more: Any) -> Fleet:
    return Fleet([{"users": group, **more} for group in groups])


def queries(grid: Fleet) -> list[Message]:
    return [Message(RecordDict(), node, "query") for node in grid.ids]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return stopped(monkeypatch)


def test_silence_is_bounded(clock: Clock) -> None:
    grid = fleet(["a"], ["b"])
    grid.deaf = {grid.ids[1]}
    replies, silent = exchange(grid, queries(grid), 3)
    assert 3 <= clock.now < 3 * 1.06
    assert [r.metadata.src_node_id for r in replies] == [grid.ids[0]]
    assert silent == [grid.ids[1]]


def test_a_node_that_left_is_not_waited_for(clock: Clock) -> None:
    grid = fleet(["a"], ["b"])
    grid.deaf, grid.gone = {grid.ids[1]}, {grid.ids[1]}
    _, silent = exchange(grid, queries(grid), 60)
    assert PRESENCE_SECONDS < clock.now < PRESENCE_SECONDS * 1.06
    assert silent == [grid.ids[1]]


def test_a_message_that_was_not_accepted_is_a_missing_reply() -> None:
    """Flower refuses messages to unknown nodes by leaving out their ids."""

    class Refusing(Fleet):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            return list(super().push_messages(messages))[:-1]

    grid = Refusing([{"users": ["a"]}, {"users": ["b"]}])
    replies, silent = exchange(grid, queries(grid), 5)
    assert len(replies) == 1
    assert silent == [grid.ids[1]]


def test_late_replies_do_not_count(clock: Clock) -> None:
    app = ClientApp()

    @app.query()
    def slow(message: Message, context: Any) -> Message:
        clock.sleep(0.2)
        return Message(RecordDict(), reply_to=message)

    grid = LocalGrid(app, 3)
    messages = [Message(RecordDict(), node, "query") for node in grid.get_node_ids()]
    replies, silent = exchange(grid, messages, 0.3)
    assert (len(replies), len(silent)) == (1, 2)


def at_the_door(roster: Roster | None = None) -> Reception:
    """Nobody is there yet."""
    return Reception(roster or Roster(note=lambda text: None), Agreed(Config.parse()))


def test_too_few_nodes_are_waited_for_and_then_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both say what is missing, once; the error what to do, too."""
    monkeypatch.setattr(reception, "SOON", 0.0)
    notes: list[str] = []
    with pytest.raises(NodeError, match=r"only 2 of 3 nodes connected within 0\.2 s.*num-nodes=2"):
        at_the_door(Roster(note=notes.append)).wait(fleet(["a"], ["b"]), 3, 0.2)
    assert notes == ["2 of 3 nodes are there (num-nodes=3): waiting for more, up to 0.2 s"]


def test_nodes_come_and_go_and_users_stay_themselves() -> None:
    """A user's device comes back as another node, first while the old one is still listed."""
    notes = Notes()
    roster = Roster(note=notes.notes.append)
    reception = at_the_door(roster)
    grid = fleet(["a", "b"], ["c"], ["c"])
    grid.gone = {grid.ids[2]}
    reception.wait(grid, 2, 1)
    assert roster.users == ["a", "b", "c"]
    assert roster.by_node(["c", "a"]) == {grid.ids[1]: ["c"], grid.ids[0]: ["a"]}
    grid.gone = {grid.ids[0]}
    reception.refresh(grid, 1)
    assert roster.users == ["c"]
    assert roster.members["c"].node == grid.ids[1]
    assert any("users a, b are gone" in note for note in notes.notes)
    assert (
        f"node {grid.ids[2]} is refused as user c: node {grid.ids[1]} had it first" in notes.notes
    )
    grid.gone = {grid.ids[0], grid.ids[1]}
    reception.refresh(grid, 1)
    assert roster.members["c"].node == grid.ids[2]


def test_what_cannot_take_part_is_left_out_and_the_others_start() -> None:
    """Most nodes say what a sample looks like, whoever came first."""
    for odd in range(3):
        notes = Notes()
        hosts: list[dict[str, Any]] = [{"users": [user]} for user in "abc"]
        hosts[odd]["shape"] = (5,)
        roster = Roster(note=notes.notes.append)
        reception = at_the_door(roster)
        reception.wait(Fleet(hosts), 3, 1)
        assert roster.users == [user for user in "abc" if user != "abc"[odd]]
        assert reception.agreed.shape == (4,)
        assert "its samples have shape (5,), the others' (4,)" in notes.notes[0]


def test_a_start_with_nobody_says_why() -> None:
    with pytest.raises(DataError, match=r"^user a has no training data: give it more samples.*\.$"):
        at_the_door().wait(fleet(["a"], train=0), 1, 1)
    with pytest.raises(DataError, match=r"num-classes=-1: not from 0 to 100000\.$"):
        at_the_door().wait(fleet(["a"], classes=-1), 1, 1)


def test_a_node_that_comes_late_must_fit() -> None:
    notes = Notes()
    roster = Roster(note=notes.notes.append)
    reception = at_the_door(roster)
    grid = Fleet([{"users": ["a"]}, {"users": ["b"], "shape": (5,)}])
    grid.gone = {grid.ids[1]}
    reception.wait(grid, 1, 1)
    grid.gone = set()
    reception.refresh(grid, 1)
    assert roster.users == ["a"]
    assert "is left out" in notes.notes[0]


def test_classes_and_numbers_do_not_mix() -> None:
    """Nodes may know of different numbers of classes; labels that are numbers are 0 classes."""
    for classes, why in (
        ((3, 0), "it has numbers as labels, the model 3 classes"),
        ((0, 3), "it has 3 classes, the model numbers as labels"),
    ):
        grid = Fleet([{"users": [u], "classes": n} for u, n in zip("ab", classes, strict=True)])
        notes = Notes()
        roster = Roster(note=notes.notes.append)
        reception = at_the_door(roster)
        grid.gone = {grid.ids[1]}
        reception.wait(grid, 1, 1)
        grid.gone = set()
        reception.refresh(grid, 1)
        assert roster.users == ["a"] and reception.agreed.num_classes == classes[0]
        assert why in notes.notes[0]


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ((0, 0), 0),
        ((3, 5), 5),
        ((5, 3), 5),
        ((4, 7, 10, 9, 10, 99_999), 10),
        ((10, 10, 10, 12, 12), 10),
        ((2, 2, 10), 2),
    ],
)
def test_no_single_node_says_how_many_classes_there_are(said: tuple[int, ...], known: int) -> None:
    """Unless nobody agrees with anybody; those with more than the model has are left out."""
    names = "abcdef"[: len(said)]
    roster = Roster(note=lambda text: None)
    reception = at_the_door(roster)
    grid = Fleet([{"users": [u], "classes": n} for u, n in zip(names, said, strict=True)])
    reception.wait(grid, len(said), 1)
    assert reception.agreed.num_classes == known
    assert roster.users == [u for u, n in zip(names, said, strict=True) if n <= known]


def test_a_federation_without_users_is_an_error() -> None:
    with pytest.raises(NodeError, match="host no users"):
        at_the_door().wait(fleet([]), 1, 1)
