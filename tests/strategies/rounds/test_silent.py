"""Nodes that never reply, or reply badly: what they cost, and what becomes of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from corsage.app.run.status import exit_code
from corsage.core.configuration.config import Config
from corsage.core.errors import NodesSilent
from corsage.core.known_devices import KnownDevices, Standing
from corsage.datasets.dealing.federated import simulated
from corsage.strategies import strategy_class
from corsage.strategies.devices.patience import Pace, Patience, Pending
from corsage.strategies.devices.standing import Conduct
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.callbacks import Callback
from corsage.strategies.rounds.same_data import marks as marks_of
from corsage.strategies.rounds.state import restored, stored
from tests.support.devices import Devices as Files
from tests.support.federations import KINDS, SUITED, Notes, settings
from tests.support.silent import (
    NODES,
    SECONDS,
    Devices,
    Speed,
    falling_silent,
    mute,
    played,
    stopped,
    usual,
)

FEW: dict[str, Any] = {"num_rounds": 4}
ALL_MUST_ANSWER = 2.2
"""Round times: Newton's rounds need everybody, so a question is asked again without the silent."""


def keys_of(name: str) -> dict[str, Any]:
    """Keys that suit an algorithm and six nodes."""
    own = {key.replace("-", "_"): value for key, value in SUITED.get(name, {}).items()}
    return {**own, "num_users": 0 if "dataset" in own else 12, "num_nodes": NODES, "num_rounds": 3}


@pytest.mark.parametrize("name", KINDS)
def test_half_of_the_nodes_silent_cost_less_than_two_rounds_in_all(name: str) -> None:
    """By default, whatever the algorithm; and the others' run comes to its end."""
    keys = keys_of(name)
    honest, whole, _, _ = played(usual, name, **keys)
    seconds, strategy, result, _ = played(mute, name, **keys)
    assert strategy.progress.round == whole.progress.round
    most = ALL_MUST_ANSWER if name == "convex-clustering" else 2.0
    assert seconds - honest < most * honest / whole.progress.round
    assert result.summaries[0].users == 6
    (told,) = [found for found in result.summaries[0].findings if found.title == "Set aside"]
    assert len(told.rows) == 3 and all("no reply in time" in cause for _, cause in told.rows)


@pytest.mark.parametrize("rounds", [4, 16])
def test_longer_runs_do_not_pay_more(rounds: int) -> None:
    """Only the pauses grow: it is not one timeout an exchange."""
    honest = played(usual, num_rounds=rounds)[0]
    seconds, _, _, grid = played(mute, num_rounds=rounds)
    assert seconds - honest < 2 * honest / rounds
    assert grid.asked.count((0, "train")) <= 6


def test_nodes_that_fall_silent_in_the_middle() -> None:
    honest = played(usual, num_rounds=10)[0]
    assert played(falling_silent, num_rounds=10)[0] - honest < 2 * honest / 10


def test_without_patience_each_is_waited_for_to_the_end() -> None:
    """Until it is set aside."""
    seconds = played(mute, patience=0, **FEW)[0]
    assert 600 < seconds < 3 * 600


def test_a_quorum_gives_up_slow_ones_as_well() -> None:
    """By default a slow device is waited for, once it is known to be one."""

    def slow(number: int, kind: str, before: int) -> float | None:
        return SECONDS[kind] * (5 if number == 0 else 1)

    late = played(slow, num_rounds=8)[1].progress.dropped
    assert 0 < late["0"] <= 3
    _, strategy, result, _ = played(slow, num_rounds=8, quorum=0.5)
    assert strategy.progress.dropped["0"] > late["0"]
    assert result.summaries[0].users == 5


def test_a_slow_device_is_waited_for_from_the_start_if_its_data_say_so() -> None:
    patience, pace = Patience(3.0), Pace()
    messages = [Pending(query(number), 0.0, size) for number, size in enumerate((10, 10, 50))]
    for sent in messages:
        pace.ask(sent)
    for sent in messages[:2]:
        patience.came(sent, 20.0, pace)
    assert patience.until(messages[2], pace, waiting=True) == pytest.approx(3 * 20 * 5)


def query(node: int) -> Message:
    from flwr.app import RecordDict

    return Message(RecordDict(), node, "train", ttl=600.0)


def test_a_minority_that_replies_at_once_ends_no_wait() -> None:
    """Two of five reply after a millisecond, to have the others given up."""

    def hasty(number: int, kind: str, before: int) -> float | None:
        return 0.001 if number < 2 and kind == "train" else usual(number, kind, before)

    _, strategy, _, _ = played(hasty, **FEW)
    assert strategy.progress.dropped == {}


def test_late_replies_change_nothing_but_show_that_a_node_lives() -> None:
    """Its numbers of that exchange are not used; and it is let in again."""

    def once_late(number: int, kind: str, before: int) -> float | None:
        late = number == 0 and kind == "train" and before == 1
        return SECONDS[kind] * (6 if late else 1)

    _, strategy, result, _ = played(once_late, num_rounds=8)
    assert 1 <= strategy.progress.dropped["0"] <= 2
    assert result.summaries[0].users == 6
    assert not strategy.members.resting


def test_an_honest_run_is_the_same_with_and_without_patience() -> None:
    patient, hasty = (played(usual, patience=times, **FEW)[2] for times in (0.0, 3.0))
    assert patient.summaries[0].per_user == hasty.summaries[0].per_user
    assert hasty.summaries[0].findings == [] and hasty.summaries[0].dropped == {}


class Away(Devices):
    """The last device stops at its second training; after a minute the SuperLink misses it."""

    since = float("inf")

    def get_node_ids(self) -> Iterable[int]:
        gone = self.clock.now > self.since + 59.0
        return [node for node, n in self.numbers.items() if n != NODES - 1 or not gone]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        found = list(super().push_messages(messages))
        if self.asked.count((NODES - 1, "train")) > 1:
            self.since = min(self.since, self.clock.now)
        return found


def until_stopped(number: int, kind: str, before: int) -> float | None:
    stopped_there = number == NODES - 1 and kind == "train" and before
    return None if stopped_there else usual(number, kind, before)


def test_a_node_without_heartbeat_is_called_that_and_not_set_aside() -> None:
    notes = Notes()
    keys = {"num_users": 6, "num_rounds": 3, "fraction_train": 1.0, "patience": 0}
    with stopped() as clock:
        strategy = strategy_class("fedavg")(settings("fedavg", **keys), [notes])
        strategy.start(Away(clock, NODES, until_stopped))
    assert 60 < clock.now < 300
    assert "user 5 is dropped: no reply in time: its node's heartbeat was lost" in notes.notes
    assert strategy.members.known.standings == {}


def test_a_round_whose_users_are_all_silent_is_played_with_others() -> None:
    """One user a round is drawn, of six of whom three are silent: RoundFailed ends such runs."""
    notes = Notes()
    keys = {"num_users": 6, "num_rounds": 12, "fraction_train": 0.2, "round_timeout": 60.0}
    with stopped() as clock:
        strategy = strategy_class("fedavg")(settings("fedavg", **keys), [notes])
        strategy.start(Devices(clock, NODES, mute))
    assert strategy.progress.round == 12
    assert any("It is played again without those that are silent" in n for n in notes.notes)


@pytest.mark.parametrize(
    ("name", "kind", "keys"),
    [
        ("fedavg", "train", {"fraction_train": 0.5}),
        ("fedavg", "evaluate", {"evaluate_with_training": False}),
        ("fedrep", "train", {"min_users": 2}),
    ],
)
def test_a_run_outlasts_a_time_in_which_no_node_replies(
    name: str, kind: str, keys: dict[str, Any]
) -> None:
    """They all go silent in an exchange; what they are asked 200 s later they answer."""
    notes, since = Notes(), [float("inf")]

    def speed(number: int, asked: str, before: int) -> float | None:
        if asked == kind and before == 1:
            since[0] = min(since[0], clock.now)
        away = since[0] <= clock.now < since[0] + 200
        return None if away else usual(number, asked, before)

    with stopped() as clock:
        strategy = strategy_class(name)(
            settings(name, **{**keys_of(name), "fraction_train": 1.0, **keys}), [notes]
        )
        result = strategy.start(Devices(clock, NODES, speed))
    assert since[0] + 200 < clock.now and strategy.progress.round
    assert result.summaries[0].users == 12
    assert sum("no node replies: waiting for them" in n for n in notes.notes) == 1
    assert sum("played again: nodes are back" in n for n in notes.notes) == 1


def test_nodes_that_stay_silent_end_a_run_so_that_it_is_tried_again() -> None:
    """Also those that say who they are and nothing more; a silence has `round-timeout` in all."""

    def silent_after_two(number: int, kind: str, before: int) -> float | None:
        return None if kind == "train" and before >= 2 else usual(number, kind, before)

    keys = {**keys_of("fedavg"), "fraction_train": 1.0}
    with stopped() as clock, pytest.raises(NodesSilent, match="round 3: no node") as caught:
        strategy = strategy_class("fedavg")(settings("fedavg", **keys))
        strategy.start(Devices(clock, NODES, silent_after_two))
    assert 600 < clock.now < 900 and exit_code(caught.value) == 75
    assert strategy.progress.round == 2


@pytest.mark.parametrize(("away", "kind"), [(200.0, "train"), (200.0, "evaluate"), (1e9, "train")])
def test_a_round_below_min_users_waits_for_them_and_is_tried_again_later(
    away: float, kind: str
) -> None:
    """One of six is silent where six are needed: for 200 s, or for good."""
    notes, since = Notes(), [float("inf")]

    def speed(number: int, asked: str, before: int) -> float | None:
        if number == 0 and asked == kind and before == 1:
            since[0] = min(since[0], clock.now)
        gone = number == 0 and since[0] <= clock.now < since[0] + away
        return None if gone else usual(number, asked, before)

    keys = {**keys_of("fedavg"), "fraction_train": 1.0, "min_users": 12}
    strategy = strategy_class("fedavg")(settings("fedavg", **keys), [notes])
    with stopped() as clock:
        try:
            result = strategy.start(Devices(clock, NODES, speed))
        except NodesSilent as error:
            assert away > 1e3 and exit_code(error) == 75 and clock.now < since[0] + 1500
            assert str(error).startswith("round 2: too few nodes reply, and not enough came back")
        else:
            assert result.summaries[0].users == 12 and strategy.progress.round == 3
            assert since[0] + 200 < clock.now < 1e3
    assert sum("too few nodes reply: waiting for them" in n for n in notes.notes) == 1


def test_a_resumed_run_knows_who_was_set_aside() -> None:
    """Its numbers and its messages are those of the run that was not interrupted."""
    keys = {"num_users": 6, "num_rounds": 9, "fraction_train": 1.0}

    def until(rounds: int, strategy: Any, seconds: Speed) -> tuple[Any, list[tuple[int, str]]]:
        with stopped() as clock:
            grid = Devices(clock, NODES, seconds)
            return strategy.start(grid, num_rounds=rounds), grid.asked

    whole = strategy_class("fedavg")(settings("fedavg", **keys))
    wanted, asked = until(9, whole, mute)
    first = strategy_class("fedavg")(settings("fedavg", **keys))
    until(4, first, mute)
    kept = {name: restored(type(part), *stored(part)) for name, part in first.parts.items()}
    assert kept["devices"].standings == first.members.known.standings and kept["devices"].standings

    again = strategy_class("fedavg")(settings("fedavg", **keys))
    with stopped() as clock:
        grid = Devices(clock, NODES, mute)
        again.begin(grid)
        again.restore(kept)
        found = again.start(grid)
    assert found.summaries[0].per_user == wanted.summaries[0].per_user
    assert again.members.known.standings == whole.members.known.standings
    mine, theirs = (
        [n for n, kind in of if kind == "train" and n < 3] for of in (grid.asked, asked)
    )
    assert len(mine) < len(theirs)


@pytest.mark.parametrize("name", ["fedavg", "fedrep", "async-l2gd", "ifca"])
def test_driven_from_outside_they_are_set_aside_as_well(name: str) -> None:
    """Flower's own loop waits as it likes; but silent nodes are not asked in every exchange."""
    keys = {**keys_of(name), "num_rounds": 8}
    keys.pop("num_nodes")
    with stopped() as clock:
        grid = Devices(clock, NODES, mute)
        strategy = strategy_class(name)(settings(name, fraction_train=1.0, **keys))
        while strategy.progress.round < 8:
            messages = list(strategy.configure_train(1, outside(strategy, grid), {}, grid))
            if not messages:
                break
            strategy.aggregate_train(1, waited(grid, clock, messages))
    asked = [grid.asked.count((number, "train")) for number in (0, 5)]
    assert asked[0] <= 5 and asked[0] < asked[1]
    assert any("set aside" in told for _, told in strategy.members.set_aside())


def outside(strategy: Any, grid: Devices) -> Any:
    return strategy.arrays(grid)


def waited(grid: Devices, clock: Any, messages: list[Message]) -> list[Message]:
    """What Flower's loop hands over after its timeout."""
    ids = list(grid.push_messages(messages))
    clock.sleep(60)
    return list(grid.pull_messages(ids))


class Spoiling(Devices):
    """The first device sends another number of samples than it introduced itself with."""

    def _work(self, message: Message) -> Message:
        reply = super()._work(message)
        if self.numbers[message.metadata.dst_node_id] == 0 and message.metadata.message_type in (
            "train",
            "evaluate",
        ):
            content: Any = reply.content
            content["metrics"]["num-examples"] = [10**9]
        return reply


def test_a_node_whose_reply_is_refused_is_set_aside_at_once() -> None:
    notes = Notes()
    keys = {"num_users": 6, "num_rounds": 6, "fraction_train": 1.0, "evaluate_every": 1}
    with stopped() as clock:
        grid = Spoiling(clock, NODES, usual)
        strategy = strategy_class("fedavg")(settings("fedavg", **keys), [notes])
        result = strategy.start(grid)
    assert grid.asked.count((0, "train")) == 3  # rounds 1, 3, 6: after one, and after two
    assert notes.notes.count("user 0 is set aside for 1 round: its reply was refused") == 1
    ((who, told),) = result.summaries[0].findings[-1].rows
    assert who == "user 0" and told.startswith("a reply refused ")


class Growing(Callback):
    """A device's file has more samples after a round."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_round_end(self, strategy: Strategy[Any, Any], row: dict[str, Any]) -> None:
        if row["round"] == 2:
            arrays = dict(np.load(self.path))
            np.savez(self.path, **{n: np.concatenate([a, a[:3]]) for n, a in arrays.items()})


def test_a_device_whose_data_grow_is_asked_anew_and_takes_part(tmp_path: Path) -> None:
    """It is left out until then; what has changed since the run began is noted, not refused."""
    config, notes = settings("fedavg", num_users=4, num_rounds=7, fraction_train=1.0), Notes()
    grid = Files(tmp_path, config)
    strategy = strategy_class("fedavg")(config, [notes, Growing(tmp_path / "1.npz")])
    strategy.start(grid)
    assert [row["users"] for row in notes.rows] == [4, 4, 4, 3, 3, 4, 4]
    marks = dict(strategy.job.built.data)
    strategy.start(grid, num_rounds=8)
    assert notes.notes[-1].endswith("not those that the run began with: user 1 is changed")
    assert [user for user in marks if strategy.job.built.data[user] != marks[user]] == ["1"]
    assert len({*marks.values(), *simulated_marks(config)}) == 8  # no server can try its guesses


def simulated_marks(config: Config) -> list[int]:
    """The marks of the same samples without a device's secret."""
    data = simulated(config.data, config.federation.num_users, config.run.seed)
    return marks_of(data, data.users)


def test_a_users_own_failure_is_no_misbehaviour_of_its_node() -> None:
    """One user diverges: it is dropped each time, and asked each time."""
    from tests.support.grids import Watched

    notes = Notes()
    grid = Watched(6, lambda number, task: number == 0)
    keys = {"num_users": 6, "num_rounds": 4, "fraction_train": 1.0}
    strategy = strategy_class("fedavg")(settings("fedavg", **keys), [notes])
    strategy.start(grid)
    assert strategy.progress.dropped == {"0": 4} and strategy.members.known.standings == {}


def test_if_nobody_else_is_left_those_set_aside_are_asked() -> None:
    book = {
        "a": Standing("k", until=9),
        "b": Standing("k", until=4),
        "c": Standing("k", until=6),
    }
    conduct = Conduct(KnownDevices(standings=book), lambda text: None)
    assert conduct.resting(["a", "b", "c", "d"], 3, 1) == {"a", "b", "c"}
    assert conduct.resting(["a", "b", "c", "d"], 3, 2) == {"a", "c"}
    assert conduct.resting(["a", "b", "c"], 3, 1) == {"a", "c"}
    assert conduct.resting(["a", "b", "c", "d"], 5, 1) == {"a", "c"}


def test_pauses_grow_and_good_replies_shorten_them() -> None:
    notes: list[str] = []
    book: dict[str, Standing] = {}
    conduct = Conduct(KnownDevices(standings=book), notes.append)
    ends = []
    number = 1
    for _ in range(4):
        conduct.silent(["a"], "key", number)
        ends.append(book["a"].until - number)
        number = book["a"].until + 1
    assert ends == [0, 1, 2, 4]
    for _ in range(70):
        conduct.alive(["a"])
    assert book["a"].doubt == book["a"].level == book["a"].until == 0
    conduct.silent(["a"], "another device", 9)
    assert book["a"].key == "another device" and book["a"].until == 9  # this round alone
