"""A hostile node in a whole run: it is named, the others go on, and nothing of it stays."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from google.protobuf.message import DecodeError

import corsage.app.nodes.work
from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.benchmarks import liars
from corsage.benchmarks.attack import client_of, lying
from corsage.clients.base import Got, Models, Sent
from corsage.clients.fedavg import FedAvgClient
from corsage.core.errors import RoundFailed, StateLost, UserError
from corsage.core.messages.encoding import encode
from corsage.core.messages.replies import Replies
from corsage.networks.batches import Examples
from corsage.strategies.devices.exchange import Exchange
from corsage.strategies.fedavg import FedAvg
from corsage.strategies.rounds.callbacks import Callback
from corsage.strategies.rounds.state import BodyState, ModelState, NoState, not_finite
from tests.support.federations import federate, settings

Change = Callable[[str, RecordDict], Any]


class Hostile(LocalGrid):
    """Twelve nodes of one user each, of which one says what it likes.

    Parameters
    ----------
    change : changes the records of its replies; it is told `train` or `evaluate`.
    """

    closed = False

    def __init__(self, change: Change) -> None:
        super().__init__(app, 12)
        self.change, self.calls = change, 0

    def _work(self, message: Message) -> Message:
        reply = super()._work(message)
        number = self._contexts[message.metadata.dst_node_id].node_config["partition-id"]
        kind = message.metadata.message_type
        if number == 3 and kind in ("train", "evaluate") and reply.has_content():
            self.calls += 1
            self.change(kind, reply.content)
        return reply


def words(content: RecordDict) -> ConfigRecord:
    return content.config_records["config"]


def only(kind: str, change: Callable[[RecordDict], Any]) -> Change:
    """In training, or in evaluations."""
    return lambda now, content: change(content) if now == kind else None


def numbers(**values: Any) -> Callable[[RecordDict], Any]:
    """Other numbers of the user."""
    own = {name.replace("_", "-"): value for name, value in values.items()}
    return lambda content: content.metric_records["metrics"].update(own)


HUGE = {"model": np.full(818, 1e300)}
ATTACKS: dict[str, tuple[Change, str]] = {
    "lost 5": (only("train", lambda c: words(c).update({"lost": 5})), "lost=5: not a list"),
    "failed 3": (only("train", lambda c: words(c).update({"failed": 3})), "failed=3: not a list"),
    "no metrics": (
        only("train", lambda c: c.update({"metrics": words(c)})),
        "metrics: it is no MetricRecord",
    ),
    "float64": (only("train", lambda c: c.update({"arrays": encode(HUGE)})), "wrong shape: model"),
    "examples": (only("train", numbers(num_examples=[10**18])), "num-examples is 1e+18"),
    "none": (only("evaluate", numbers(num_examples=[0])), "num-examples is 0"),
    "correct": (only("evaluate", numbers(correct=[1e12])), "correct is 1e+12, not a whole number"),
    "loss": (only("evaluate", numbers(loss=[-1.0])), "loss is -1"),
    "kept": (only("evaluate", lambda c: words(c).update({"kept": True})), "kept"),
}


@pytest.mark.parametrize("case", list(ATTACKS))
def test_it_is_dropped_and_named_and_the_others_go_on(case: str) -> None:
    change, why = ATTACKS[case]
    grid = Hostile(change)
    strategy, result, notes = federate("ditto", grid=grid, fraction_train=1.0, num_rounds=2)
    assert result.json()[0]["rounds"] == 2 and result.json()[0]["users"] >= 11
    assert grid.calls and set(result.json()[0]["dropped"]) == {"3"}
    named = [note for note in notes.notes if note.startswith("user 3 is dropped: ")]
    assert named and all(why in note for note in named)
    others = {note for note in notes.notes if note not in named}
    assert others == {"user 3 is set aside for 1 round: its reply was refused"}
    assert not not_finite(strategy.state)
    assert result.json()[0]["accuracy"]["max"] <= 1.0


@pytest.mark.parametrize("name", ["fedavg", "fedrep", "scaffold", "ditto", "ifca", "cfl", "fedmtl"])
def test_what_does_not_fit_a_float32_reaches_no_model(name: str) -> None:
    """Nor a checkpoint, which is written at the end of a round."""

    def overflow(content: RecordDict) -> None:
        for record in content.array_records.values():
            for array in list(record):
                record.update(encode({array: np.full(record[array].shape, 1e300)}))

    states: list[str] = []

    class Watch(Callback):
        def on_round_end(self, strategy: Any, row: dict[str, Any]) -> None:
            states.append(not_finite(strategy.state))

    grid = Hostile(only("train", overflow))
    _, result, _ = federate(name, 12, [Watch()], grid, fraction_train=1.0, num_rounds=2)
    assert states == ["", ""] and result.json()[0]["dropped"] == {"3": 1}  # then it is set aside


@pytest.mark.parametrize("value", [1e30, np.nan])
def test_one_of_a_nodes_users_is_dropped_alone(value: float) -> None:
    with lying(client_of("fedavg"), {"3"}, lambda name, true, came: np.full_like(true, value)):
        _, result, notes = federate("fedavg", 2, fraction_train=1.0, num_rounds=2)
    assert result.json()[0]["dropped"] == {"3": 2} and result.json()[0]["users"] == 12
    assert any(note.startswith("user 3 is dropped: train: ") for note in notes.notes)


@pytest.mark.parametrize("name", ["fedavg", "fedrep", "scaffold", "ifca", "cfl", "fedmtl"])
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_a_weight_that_is_claimed_weighs_nothing(name: str, weighting: str) -> None:
    """Bit for bit the run without the claim."""
    claim = Hostile(only("train", numbers(weight=1e9)))
    keys: dict[str, Any] = {"weighting": weighting, "num_rounds": 2}
    strategy, _, _ = federate(name, grid=claim, **keys)
    honest, _, _ = federate(name, 12, **keys)
    assert claim.calls
    for field in vars(honest.state):
        one, other = getattr(strategy.state, field), getattr(honest.state, field)
        assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


def test_an_evaluation_makes_nobodys_state_another() -> None:
    """Not even that of the one who says so."""
    change = only("evaluate", lambda c: words(c).update({"kept": True}))
    strategy, _, _ = federate("ditto", grid=Hostile(change), fraction_train=1.0, evaluate_every=1)
    versions = strategy.progress.versions
    assert versions.pop("3") == 3 and set(versions.values()) == {4}  # set aside in round 2 and 4


def test_who_lost_its_state_may_say_so_in_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loses(FedAvgClient[Any]):
        def models(self, got: Got) -> Models:
            if "5" in self.users:
                raise StateLost("5", "restore", "it is gone")
            return super().models(got)

    monkeypatch.setattr(corsage.app.nodes.work, "client_of", lambda task: Loses)
    _, result, notes = federate("fedavg", 3)
    assert any("user 5 is dropped: restore: it is gone" in note for note in notes.notes)
    assert result.json()[0]["users"] == 11


def test_each_user_of_a_node_fails_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails(FedAvgClient[Any]):
        def train(self, got: Got, data: Examples) -> Sent:
            raise UserError(self.users[0], "train", f"boom {self.users[0]}")

    monkeypatch.setattr(corsage.app.nodes.work, "client_of", lambda task: Fails)
    with pytest.raises(RoundFailed, match="user 0 is dropped: train: boom 0; user 1 is dropped"):
        federate("fedavg", 3, fraction_train=1.0)


def test_a_reply_of_an_earlier_exchange_is_none() -> None:
    """Under the identity of the new one."""
    earlier: list[RecordDict] = []

    def replay(content: RecordDict) -> None:
        if earlier:
            content.clear()
            content.update(earlier[0])
        earlier.append(RecordDict(dict(content)))

    _, result, notes = federate(
        "fedavg", grid=Hostile(only("train", replay)), fraction_train=1.0, num_rounds=2
    )
    assert result.json()[0]["dropped"] == {"3": 1}
    assert "user 3 is dropped: malformed reply: it answers another exchange" in notes.notes


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_nor_is_one_of_another_run_of_the_experiment(kind: str) -> None:
    held: list[RecordDict] = []

    def replay(content: RecordDict) -> None:
        content.clear()
        content.update(held.pop())

    keys = {"fraction_train": 1.0, "num_rounds": 1}
    hold = only(kind, lambda content: held.append(RecordDict(dict(content))))
    federate("fedavg", grid=Hostile(hold), **keys)
    _, result, notes = federate("fedavg", grid=Hostile(only(kind, replay)), **keys)
    assert result.json()[0]["dropped"] == {"3": 1}
    assert "user 3 is dropped: malformed reply: it answers another exchange" in notes.notes


def test_nobody_answers_for_another_node() -> None:
    """Driven from outside, too, where replies come as they are."""
    strategy, grid = FedAvg(settings("fedavg", fraction_train=1.0)), LocalGrid(app, 3)
    messages = list(strategy.configure_train(1, strategy.arrays(grid), ConfigRecord(), grid))
    replies = list(grid.send_and_receive(messages))
    one, other = replies[0], replies[1]
    one.metadata.__dict__["_src_node_id"] = other.metadata.src_node_id
    strategy.aggregate_train(1, replies)
    assert len(strategy.progress.dropped) == 4  # those of its own node, and no others


class Infinite(FedAvg):
    """A merge that overflows."""

    def merge(self, replies: Replies) -> ModelState:
        if self.progress.round:
            return ModelState(np.full_like(self.state.model, np.inf))
        return super().merge(replies)


class Singular(FedAvg):
    """A merge that cannot be computed."""

    def merge(self, replies: Replies) -> ModelState:
        if self.progress.round:
            np.linalg.inv(np.zeros((2, 2)))
        return super().merge(replies)


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (Infinite, "fedavg: round 2 would make model not finite; nothing of it is kept"),
        (Singular, "fedavg: round 2 cannot be computed .* LinAlgError: Singular matrix"),
    ],
)
def test_a_round_whose_state_is_no_numbers_has_not_been(cls: type[FedAvg], why: str) -> None:
    """Nor has the server's optimizer, or the limit of its clipping, seen it."""
    own = {"server_optimizer": "adam", "robust": "clip"}
    strategy, grid = cls(settings("fedavg", num_rounds=1, **own)), LocalGrid(app, 2)
    strategy.start(grid)
    before, known = strategy.state, deepcopy(strategy.job.updates)
    with pytest.raises(RoundFailed, match=why):
        strategy.start(grid, num_rounds=2)
    assert strategy.state is before and strategy.progress.round == 1
    assert strategy.job.updates.lengths == known.lengths
    assert all((strategy.job.updates.moments[n] == m).all() for n, m in known.moments.items())


def test_infinite_strengths_are_no_fault() -> None:
    for name in ("exact-cluster", "exact-global"):
        strategy, _, _ = federate(name)
        assert not_finite(strategy.state) == "" and np.isinf(strategy.state.gamma).all()


@pytest.mark.parametrize(
    ("state", "name"),
    [
        (NoState(), ""),
        (ModelState(np.ones(3, np.float32)), ""),
        (BodyState(np.array([1, np.nan], np.float32)), "body"),
        ({"a": [1.0, float("inf")]}, "state"),
    ],
)
def test_what_is_not_finite_has_a_name(state: object, name: str) -> None:
    assert not_finite(state) == name


class Unreadable:
    """A grid as Flower's: it puts replies together when they are pulled, and cannot do it once."""

    def __init__(self, bad: str) -> None:
        self.bad, self.kept = bad, dict[str, Message]()

    def push_messages(self, messages: list[Message]) -> list[str]:
        for number, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = str(number)
            reply = Message(RecordDict(), reply_to=message)
            self.kept[str(number)] = reply
        return list(self.kept)

    def pull_messages(self, message_ids: list[str]) -> list[Message]:
        if self.bad in message_ids and self.kept.pop(self.bad, None):
            raise DecodeError("Error parsing message")
        return [self.kept.pop(i) for i in list(message_ids) if i in self.kept]

    def get_node_ids(self) -> list[int]:
        return list(range(2, 14))


def test_a_reply_that_flower_cannot_read_ends_nothing() -> None:
    """It is confirmed by then, so the SuperLink does not give it again."""
    LocalGrid(app, 1)  # sets the identity that Flower needs to make a message
    messages = [Message(RecordDict(), node, "train") for node in range(2, 14)]
    exchange = Exchange(cast(Any, Unreadable("3")), timeout=0.5)
    exchange.push(messages)
    done: list[tuple[Message, Message | None]] = []
    while some := exchange.pull():
        done += some
    assert len(done) == 12
    assert [sent.metadata.dst_node_id for sent, reply in done if reply is None] == [5]


@pytest.mark.parametrize("reason", ["\x1b[2J\x1b]0;owned\x07", "a\r\nfake line", "x" * 10**6])
def test_what_is_noted_is_one_clean_line(reason: str) -> None:
    class Failing(LocalGrid):
        def _work(self, message: Message) -> Message:
            reply = super()._work(message)
            number = self._contexts[message.metadata.dst_node_id].node_config["partition-id"]
            if number == 3 and message.metadata.message_type == "train":
                reply = Message(Error(2, reason), reply_to=message)
                reply.metadata.__dict__["_message_id"] = f"reply-{message.metadata.message_id}"
            return reply

    _, _, notes = federate("fedavg", grid=Failing(app, 12), fraction_train=1.0, num_rounds=1)
    assert len(notes.notes) == 1 and notes.notes[0].isprintable() and len(notes.notes[0]) < 400


def test_the_benchmark_says_what_is_lost_and_who_is_named(capsys: Any) -> None:
    words = ["fedavg", "--liars", "1", "--lies", "not a number", "--robust", "none,median"]
    assert liars.main(words) == 0
    found = capsys.readouterr().out
    assert "| fedavg | none | " in found and "(not a number), 1 held, 1 named" in found
    with pytest.raises(SystemExit):
        liars.main(["fedavg", "--lies", "a fib"])
    assert "'a fib': not one of turned, " in capsys.readouterr().err
