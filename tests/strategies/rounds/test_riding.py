"""Evaluations that ride on the next round's training: the same numbers, half of the exchanges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from flwr.supercore.task_identity import TaskIdentity

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.core.messages.aboard import (
    EVALUATION,
    FAILED_WHOLE,
    METRICS,
    joined,
    on_board,
    packed,
    split,
)
from corsage.strategies import strategy_class
from corsage.strategies.devices.riding import rides
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.callbacks import Callback
from tests.support.devices import Devices
from tests.support.federations import Notes, federate, same_arrays, settings
from tests.support.grids import At
from tests.support.resuming import Resume, Stop

KEYS: dict[str, Any] = {
    "num_users": 5,
    "num_rounds": 3,
    "evaluate_every": 1,
    "fraction_train": 0.4,
    "head_epochs": 1,
}
ALONE = {"evaluate_with_training": False}


class Watched(Devices):
    """Devices whose messages are noted, exchange by exchange."""

    def __init__(self, folder: Path, name: str = "fedrep", **keys: Any) -> None:
        super().__init__(folder, settings(name, **keys))
        self.exchanges: list[list[Message]] = []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Note them."""
        found = list(messages)
        self.exchanges += [found] if found and found[0].metadata.message_type != "query" else []
        return super().push_messages(found)


def both(tmp_path: Path, name: str = "fedrep", **keys: Any) -> list[Any]:
    """The same run with evaluations on board and with messages of their own."""
    keys = {**KEYS, **keys}
    found = []
    for more in ({}, ALONE):
        grid = Watched(tmp_path / str(len(found)), name, **keys)
        found.append((*federate(name, grid=grid, **keys, **more), grid))
    return found


@pytest.mark.parametrize("name", ["fedrep", "fedavg"])
def test_it_is_the_same_run(name: str, tmp_path: Path) -> None:
    """Numbers, rows and what devices would have exchanged; of users that train and that do not."""
    (ours, result, notes, grid), (others, wanted, rows, alone) = both(tmp_path, name)
    assert same_arrays(result.arrays, wanted.arrays, tolerance=0)
    assert ours.progress.curve == others.progress.curve and len(ours.progress.curve) == 3
    for own, other in zip(result.summaries, wanted.summaries, strict=True):
        assert own.per_user == other.per_user
    assert result.evaluate_metrics_clientapp == wanted.evaluate_metrics_clientapp
    assert [plain(row) for row in notes.rows] == [plain(row) for row in rows.rows]
    assert len(grid.exchanges) == 4 and len(alone.exchanges) == 6
    kinds = [Counter(m.metadata.message_type for m in one) for one in grid.exchanges]
    assert kinds == [{"train": 2}, *2 * [{"train": 2, "evaluate": 3}], {"evaluate": 5}]
    traffic, known = asdict(ours.job.traffic), asdict(others.job.traffic)
    for kind in ("wire_messages", "wire_bytes_down"):
        traffic.pop(kind), known.pop(kind)
    assert traffic == known


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row without the time that it took."""
    return {name: value for name, value in row.items() if name != "seconds"}


def test_what_really_passes_is_counted(tmp_path: Path) -> None:
    """What has the evaluation on board is one message, and its arrays pass once."""
    (ours, _, _, grid), (others, _, _, alone) = both(tmp_path)
    for strategy, used in ((ours, grid), (others, alone)):
        sent = [message for one in used.exchanges for message in one]
        assert strategy.job.traffic.wire_messages == 2 * len(sent)
        size = sum(len(a.data) for m in sent for a in m.content["arrays"].values())
        assert strategy.job.traffic.wire_bytes_down == size


def test_callbacks_are_told_in_order(tmp_path: Path) -> None:
    """A round is over before the next begins, also where its evaluation came with that."""
    told: list[str] = []

    class Listens(Callback):
        def on_round_start(self, strategy: Strategy[Any, Any], number: int) -> None:
            told.append(f"start {number}")

        def on_round_end(self, strategy: Strategy[Any, Any], row: dict[str, Any]) -> None:
            told.append(f"end {row['round']}")
            assert strategy.progress.round == row["round"]
            assert len(strategy.progress.curve) == row["round"]

    federate("fedrep", grid=Watched(tmp_path, **KEYS), callbacks=[Listens()], **KEYS)
    assert told == [f"{what} {n}" for n in (1, 2, 3) for what in ("start", "end")]


@pytest.mark.parametrize("more", [{}, ALONE], ids=["riding", "alone"])
def test_a_killed_run_ends_with_the_same_numbers(more: dict[str, Any], tmp_path: Path) -> None:
    """The round whose evaluation was under way is played again, from states that users kept."""
    grid, path = Watched(tmp_path / "grid", **KEYS), tmp_path / "checkpoint"
    config = settings("fedrep", **KEYS, **more)
    first = strategy_class("fedrep")(config, [Stop(path, after=2)], "run")
    with pytest.raises(KeyboardInterrupt):
        first.start(grid)
    second = strategy_class("fedrep")(config, [Resume(path, round=1)], "run")
    result = second.start(grid)
    whole, wanted, _ = federate("fedrep", grid=Watched(tmp_path / "whole", **KEYS), **KEYS, **more)
    assert same_arrays(result.arrays, wanted.arrays, tolerance=0)
    assert second.job.traffic == whole.job.traffic
    for own, other in zip(result.summaries, wanted.summaries, strict=True):
        assert own.per_user == other.per_user and own.curve == other.curve


def test_a_run_that_stops_early_does_so_whoever_plays_it(tmp_path: Path) -> None:
    """On devices nothing rides then: the next round would have begun."""
    keys = {**KEYS, "num_rounds": 12, "validation": 0.3, "stop_after": 2, "lr": 0.3}
    strategy, wanted, _ = federate("fedavg", **keys)
    grid = Watched(tmp_path, "fedavg", **keys)
    _, result, _ = federate("fedavg", grid=grid, **keys)
    number = wanted.summaries[0].rounds
    kinds = [{message.metadata.message_type for message in one} for one in grid.exchanges]
    assert number < 12 and all(len(one) == 1 for one in kinds)
    for own in (result, wanted):
        assert (
            own.summaries[0].rounds == number and own.summaries[0].curve == strategy.progress.curve
        )
    assert same_arrays(result.arrays, wanted.arrays, tolerance=0)
    other, nodes = strategy_class("fedavg")(settings("fedavg", **keys)), LocalGrid(app, 1)
    FlowerStrategy.start(other, nodes, other.arrays(nodes), num_rounds=12)
    assert (
        other.progress.curve[:number] == strategy.progress.curve and other.progress.round == number
    )


def test_a_round_ends_before_anything_of_the_next_one_is_noted(tmp_path: Path) -> None:
    """Whoever resumes plays that round anew: who misbehaved in it is asked again."""
    standings: list[int] = []

    class Spoils(Watched):
        def _work(self, message: Message) -> Message:
            reply = super()._work(message)
            config: Any = reply.content["config"]
            if EVALUATION in message.content and "0" in config["users"]:
                config["exchange"] = "of another message"
            return reply

    class Looks(Callback):
        def on_round_end(self, strategy: Strategy[Any, Any], row: dict[str, Any]) -> None:
            standings.append(sum(own.refused for own in strategy.members.known.standings.values()))

    keys = {**KEYS, "fraction_train": 1.0}
    federate("fedrep", grid=Spoils(tmp_path, **keys), callbacks=[Looks()], **keys)
    assert standings == [0, 1, 1]


def test_states_that_are_gone_are_evaluated_anew(tmp_path: Path) -> None:
    """The evaluation is asked once more, by itself, and the run goes on."""
    grid = Watched(tmp_path, **KEYS)

    def lose() -> None:
        for path in (tmp_path / "state-0").rglob("*.safetensors"):
            path.unlink()
        for context in grid._contexts.values():
            context.state = RecordDict()

    keys = {**KEYS, "fraction_train": 1.0}
    _, result, notes = federate("fedrep", grid=grid, callbacks=[At(3, lose)], **keys)
    assert any("user 0 is dropped: restore" in note for note in notes.notes)
    assert all(summary.users == 5 for summary in result.summaries)


def test_each_half_has_its_own_causes(tmp_path: Path) -> None:
    """A device that refuses both is named for both, and nobody else is lost."""
    grid = Watched(tmp_path, **KEYS)
    keys = {**KEYS, "fraction_train": 1.0, "head_epochs": 3}
    sterner = At(2, lambda: grid.node_config(3).update({"max-epochs": 2}))
    strategy, _, notes = federate("fedrep", grid=grid, callbacks=[sterner], **keys)
    why = "head-epochs=3 is more than this device allows (max-epochs=2)"
    told = [f"user 3 is dropped: {phase}: {why}" for phase in ("evaluate", "train")]
    assert notes.notes[:2] == told and strategy.progress.dropped == {"3": 3}
    assert [row["users"] for row in notes.rows] == [5, 5, 4]


def test_where_it_cannot_it_does_not() -> None:
    """Rounds of several exchanges, and users that get other arrays for an evaluation."""
    able = {"fedrep", "fedavg", "local", "ditto", "apfl"}
    unable = {"async-l2gd", "mixed-model", "convex-clustering", "scaffold", "cfl", "fedrep-known"}
    for name in able | unable:
        assert rides(strategy_class(name)(settings(name), [Notes()])) == (name in able), name


# Replies, as devices may make them.


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who makes messages here."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def reply(**records: Any) -> Message:
    message = Message(RecordDict(), 1, "train")
    message.metadata.__dict__["_message_id"] = "1"
    return Message(RecordDict(records), reply_to=message)


def test_two_replies_are_one_and_two_again() -> None:
    trained = reply(config=ConfigRecord({"users": ["a"]}), metrics=MetricRecord({"n": [1.0]}))
    evaluated = reply(config=ConfigRecord({"users": ["b"]}), metrics=MetricRecord({"n": [2.0]}))
    failed = Message(Error(1, "why"), reply_to=Message(RecordDict(), 1, "train"))
    for pair in ((trained, evaluated), (trained, failed), (failed, evaluated), (failed, failed)):
        one = reply(**joined(*pair))
        for half, wanted in zip(split(one), pair, strict=True):
            assert half.has_error() == wanted.has_error()
            if wanted.has_error():
                assert half.error.reason == "why"
            else:
                assert half.content == wanted.content
    assert split(failed) == (failed, failed)


@pytest.mark.parametrize("record", [ConfigRecord({"train": 3}), MetricRecord({"train": 1})])
def test_what_is_no_cause_is_none(record: Any) -> None:
    """Then the reply is empty, which the schema refuses."""
    one, other = split(reply(**{FAILED_WHOLE: record, METRICS: ConfigRecord({})}))
    assert one.content == RecordDict() and list(other.content) == ["metrics"]


def test_what_is_on_board_is_a_task_or_nothing() -> None:
    inside = packed(RecordDict(), RecordDict({"config": ConfigRecord({"round": 1})}))
    found = on_board(reply(**inside))
    assert found is not None and found.content == RecordDict({"config": ConfigRecord({"round": 1})})
    assert on_board(reply(**{EVALUATION: MetricRecord({"round": 1})})) is None
