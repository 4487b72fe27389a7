"""Nodes that introduce themselves badly, or as somebody else, at the start and in a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from hypothesis import given
from hypothesis import strategies as st

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.app.states.state_dir import SECRET, proof_of
from corsage.core.errors import DataError, Refused
from corsage.core.known_devices import KnownDevices, Owner
from corsage.core.messages.fields import columns_of
from corsage.core.messages.introduction import SAMPLES, Introduction, read_introduction
from corsage.strategies import strategy_class
from corsage.strategies.devices.devices import Owners
from corsage.strategies.rounds.agreed import check_data
from tests.support.federations import Notes, federate, reference, same_arrays, settings
from tests.support.grids import At

SMALL = {"num_users": 4, "num_rounds": 3, "fraction_train": 1.0}
Spoil = Callable[[RecordDict], None]


def words(**values: Any) -> Spoil:
    """Says something else of itself."""
    return lambda content: content["config"].update(
        {k.replace("_", "-"): values[k] for k in values}
    )


def counts(**values: Any) -> Spoil:
    return lambda content: content["metrics"].update(values)


def without(record: str) -> Spoil:
    return lambda content: content.pop(record)


ATTACKS: dict[str, tuple[Spoil, str]] = {
    "many classes": (words(num_classes=10**9), "num-classes=1000000000: not from 0 to 100000"),
    "no classes": (words(num_classes=-1), "num-classes=-1: not from"),
    "classes inf": (words(num_classes=math.inf), "num-classes=inf: not a whole number"),
    "classes nan": (words(num_classes=math.nan), "num-classes=nan: not a whole number"),
    "classes true": (words(num_classes=True), "num-classes=True: not a whole number"),
    "classes text": (words(num_classes="ten"), "num-classes=ten: not a whole number"),
    "shape inf": (words(input_shape=[math.inf]), "input-shape[0]=inf: not a whole number"),
    "shape 0": (words(input_shape=[0, 8]), "input-shape[0]=0: not from 1"),
    "shape large": (words(input_shape=[10**4] * 3), "numbers a sample"),
    "shape deep": (words(input_shape=[1] * 100), "input-shape: 100 entries, at most 8 are read"),
    "shape text": (words(input_shape="8,8"), "input-shape=8,8: not a list"),
    "no shape": (lambda said: said["config"].pop("input-shape"), "input-shape: it is missing"),
    "samples inf": (counts(train=[math.inf]), "train[0]=inf: not a whole number"),
    "samples many": (counts(train=[10**18]), "train[0]=a huge number: not from 0"),
    "samples less": (counts(test=[-5]), "test[0]=-5: not from 0"),
    "samples short": (counts(train=[1, 2]), "train: 2 values of 1 users"),
    "samples one": (counts(train=7), "train=7: not a list"),
    "empty id": (words(users=[""]), "users[0]: an id is empty"),
    "blank id": (words(users=["  "]), "users[0]: an id is empty"),
    "long id": (words(users=["x" * 10**6]), "users[0]: a text of 1000000 characters, at most 200"),
    "escaping id": (words(users=["\x1b[2J"]), r"users[0]=\x1b[2J: has characters that cannot be"),
    "two ids": (words(users=["3", "3"]), "users: 3 is named twice"),
    "ids of bytes": (words(users=[b"3"]), "users[0]=b'3': not a text"),
    "cluster": (words(clusters=["a\nb"]), "clusters[0]=a"),
    "proof": (words(proof="x" * 10**6), "proof: a text of 1000000 characters, at most 64"),
    "no config": (without("config"), "config: it is missing"),
    "no metrics": (without("metrics"), "metrics: it is missing"),
    "config of numbers": (
        lambda content: content.update({"config": MetricRecord({"users": 1})}),
        "config: it is no ConfigRecord",
    ),
    "unknown": (words(colour="red"), "colour: unknown; is the other side of another version?"),
    "other shape": (words(input_shape=[5]), "its samples have shape (5,), the others'"),
    "other labels": (words(num_classes=0), "it has numbers as labels, the model 10 classes"),
}


class Spoilt(LocalGrid):
    """Nodes of which the last one introduces itself as the test says."""

    def __init__(self, spoil: Spoil, num_nodes: int = 4, gone: Iterable[int] = ()) -> None:
        super().__init__(app, num_nodes)
        self.spoil, self.ids = spoil, list(super().get_node_ids())
        self.gone = {self.ids[number] for number in gone}
        self.closed = num_nodes == 1

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in super().get_node_ids() if node not in self.gone]

    def _work(self, message: Message) -> Message:
        reply = super()._work(message)
        last = message.metadata.dst_node_id == self.ids[-1]
        if last and message.metadata.message_type == "query":
            self.spoil(reply.content)
        return reply


@pytest.mark.parametrize("name", ATTACKS)
def test_a_bad_introduction_is_refused_and_the_others_start(name: str) -> None:
    """Their numbers are those of a run in which that device never was."""
    spoil, why = ATTACKS[name]
    _, result, notes = federate("fedavg", grid=Spoilt(spoil), **SMALL)
    _, wanted, _ = absent()
    assert same_arrays(result.arrays, wanted.arrays, 0)
    (line,) = [note for note in notes.notes if "is left out: " in note][:1]
    assert why in line and line.isprintable() and len(line) < 400
    (finding,) = result.summaries[0].findings
    assert finding.title == "Set aside" and why in finding.rows[0][1]


def test_a_node_of_more_users_than_it_allows_models_is_told_so_at_the_start() -> None:
    """Twelve models of 1,210 parameters; ten times 1,300 numbers is what it holds."""
    spoil = words(max_parameters=1300)
    why = r"12 models of 1,210 parameters, 0 MB for its users, .* \(10 times max-parameters=1,300\)"
    with pytest.raises(DataError, match=why):
        federate("fedavg", grid=Spoilt(spoil, 1))
    federate("fedavg", grid=Spoilt(words(max_parameters=1500), 1), num_rounds=1)


def absent() -> Any:
    """The same run without the last node."""
    return federate("fedavg", grid=Spoilt(lambda content: None, gone=[3]), **SMALL)


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("classes inf", "fedavg"),
        ("many classes", "fedrep"),
        ("shape inf", "async-l2gd"),
        ("no config", "convex-clustering"),
    ],
)
def test_a_node_that_comes_late_ends_nothing(name: str, algorithm: str) -> None:
    grid = Spoilt(ATTACKS[name][0], gone=[3])
    comes = At(2, grid.gone.clear)
    strategy, _, notes = federate(algorithm, grid=grid, callbacks=[comes], num_rounds=3)
    assert strategy.progress.round == 3
    assert any(ATTACKS[name][1] in note for note in notes.notes)


def test_it_is_asked_again_after_growing_pauses_and_let_in_when_it_mended_its_ways() -> None:
    asked: list[int] = []
    grid = Spoilt(lambda content: None)

    def spoil(content: RecordDict) -> None:
        asked.append(strategy.progress.round + 1)
        if len(asked) < 4:
            words(num_classes=-1)(content)

    grid.spoil = spoil
    notes = Notes()
    strategy = strategy_class("fedavg")(settings("fedavg", **{**SMALL, "num_rounds": 12}), [notes])
    result = strategy.start(grid)
    assert asked == [1, 1, 3, 7]  # before the first round, and before these
    assert result.summaries[0].users == 4 and not result.summaries[0].findings


def test_a_start_with_nobody_ends_in_one_line() -> None:
    with pytest.raises(DataError, match=r"^its introduction is malformed: num-classes=-1: .*\.$"):
        federate("fedavg", grid=Spoilt(words(num_classes=-1), 1), **SMALL)


def test_an_error_in_place_of_an_introduction_is_one_printable_line() -> None:
    class Failing(Spoilt):
        def _work(self, message: Message) -> Message:
            if message.metadata.dst_node_id != self.ids[-1]:
                return super()._work(message)
            reason = "\x1b]0;x\x07\r\nINFO: all is well" + "x" * 10**6
            return Message(Error(ErrorCode.UNKNOWN, reason), reply_to=message)

    _, result, notes = federate("fedavg", grid=Failing(lambda content: None), **SMALL)
    assert result.summaries[0].users == 3
    assert all(note.isprintable() and len(note) < 400 for note in notes.notes)


VALUES = st.one_of(
    st.none(),
    st.integers(),
    st.floats(),
    st.text(),
    st.lists(st.integers() | st.floats() | st.text() | st.booleans()),
)


FIELDS = st.sampled_from(sorted(columns_of(Introduction) - set(SAMPLES)))


@given(st.dictionaries(FIELDS, VALUES))
def test_whatever_is_said_is_read_or_refused(said: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"users": ["a"], "input-shape": [2], "num-classes": 2, **said}
    record = ConfigRecord()
    record.__dict__["_data"].update(fields)  # also what Flower would not let in
    content = RecordDict({"config": record, "metrics": MetricRecord({"train": [1], "test": [1]})})
    try:
        found = read_introduction(content)
    except Refused as why:
        assert str(why)
    else:
        assert math.prod(found.shape) <= 10**8 and 0 <= found.num_classes <= 10**5
        assert all(user.isprintable() for user in found.users)


# Whose an id is.


class Impostors(LocalGrid):
    """Nodes that say that they host a user of their choice, with keys and proofs of their choice.

    Parameters
    ----------
    claims : the user that a node says it hosts, by its number.
    keys, proofs : what it is known by; none: nothing.
    gone : the numbers of nodes that are not there.
    """

    closed = False

    def __init__(self, claims: dict[int, str], num_nodes: int = 4) -> None:
        super().__init__(app, num_nodes)
        self.claims, self.gone = claims, set[int]()
        self.keys, self.proofs = dict[int, bytes](), dict[int, str]()
        self.numbers = {node: number for number, node in enumerate(self._contexts)}
        self.worked: list[tuple[int, str]] = []

    def get_node_ids(self) -> Iterable[int]:
        return [node for node, number in self.numbers.items() if number not in self.gone]

    def get_nodes(self) -> Iterable[NodeInfo]:
        for node in self.get_node_ids():
            key = self.keys.get(self.numbers[node], b"")
            yield NodeInfo(node_id=node, public_key=key)

    def _work(self, message: Message) -> Message:
        number = self.numbers[message.metadata.dst_node_id]
        reply, kind = super()._work(message), message.metadata.message_type
        if kind == "query":
            content: Any = reply.content
            if number in self.claims:
                content["config"]["users"] = [self.claims[number]]
            if number in self.proofs:
                content["config"]["proof"] = self.proofs[number]
        self.worked.append((number, kind))
        return reply


def test_who_is_there_first_keeps_its_id_in_the_middle_of_a_run() -> None:
    """A device that says it is user 0 has no part in the run, and changes nothing."""
    grid = Impostors({3: "0"})
    grid.gone = {3}
    comes = At(2, grid.gone.clear)
    _, result, notes = federate("fedrep", grid=grid, callbacks=[comes], **SMALL)
    _, wanted, _ = federate("fedrep", grid=Spoilt(lambda content: None, gone=[3]), **SMALL)
    assert result.summaries[0].per_user == wanted.summaries[0].per_user
    assert (3, "train") not in grid.worked
    assert sum("is refused as user 0: node" in note for note in notes.notes) == 1


@pytest.mark.parametrize(
    ("registered", "proof", "key", "let_in"),
    [
        (False, "", b"", True),  # nothing is known of either device
        (False, "", b"other", True),  # Flower gives a new key at every start
        (True, "", b"other", False),
        (False, "mine", b"other", False),
        (True, "mine", b"other", False),
    ],
)
def test_a_stranger_claims_the_id_of_a_user_whose_node_left(
    registered: bool, proof: str, key: bytes, let_in: bool
) -> None:
    grid = Impostors({3: "0"})
    grid.gone, grid.keys = {3}, {0: b"own", 3: key}
    grid.proofs = {0: proof} if proof else {}

    def swap() -> None:
        grid.gone = {0}

    keys = {**SMALL, "registered_keys": registered, "num_rounds": 4}
    _, _, notes = federate("fedrep", grid=grid, callbacks=[At(2, swap)], **keys)
    assert ((3, "train") in grid.worked) == let_in
    assert any("refused as user 0: it belongs" in note for note in notes.notes) != let_in


@pytest.mark.parametrize("known_by", ["key", "proof"])
def test_a_device_that_starts_again_has_its_id_at_once(known_by: str) -> None:
    """Though its old node is still listed; also where a stranger was first to claim it."""
    grid = Impostors({2: "0", 3: "0"})
    grid.gone = {2, 3}
    if known_by == "key":
        grid.keys = {0: b"own", 3: b"own"}
    else:
        grid.keys, grid.proofs = {0: b"a", 2: b"b", 3: b"c"}, {0: "mine", 3: "mine", 2: "guess"}
    keys = {**SMALL, "num_rounds": 4}
    _, _, notes = federate("fedrep", grid=grid, callbacks=[At(2, grid.gone.clear)], **keys)
    assert (3, "train") in grid.worked and (2, "train") not in grid.worked
    assert sum("is refused as user 0" in note for note in notes.notes) == 1


def test_two_supernodes_with_one_state_dir_are_one_and_a_line() -> None:
    """Their users' states and secret are in each other's hands; whose word comes first stays."""
    grid = Impostors({3: "other"})
    grid.proofs = {0: "shared", 3: "shared"}
    _, _, notes = federate("fedrep", grid=grid, **SMALL)
    assert ((0, "train") in grid.worked) != ((3, "train") in grid.worked)
    assert any("its state-dir is node" in note for note in notes.notes)


def test_a_resumed_run_remembers_whose_ids_are() -> None:
    """A stranger that is there first when the run is resumed is put out again."""
    grid = Impostors({})
    grid.proofs = {number: f"of {number}" for number in range(4)}
    first, _, _ = federate("fedrep", grid=grid, **{**SMALL, "num_rounds": 2})
    assert set(first.members.known.owners) == {"0", "1", "2", "3"}
    stranger = Impostors({3: "0"})
    stranger.gone, stranger.proofs = {0}, {1: "of 1", 2: "of 2", 3: "guess"}
    notes = Notes()
    again = strategy_class("fedrep")(settings("fedrep", **SMALL), [notes])
    again.begin(stranger)
    assert again.job.members.users == ["0", "1", "2"]
    again.restore(first.parts)
    check_data(again.job)
    assert again.job.members.users == ["1", "2"]
    assert any("refused as user 0: it belongs to a device with" in n for n in notes.notes)
    stranger.gone = set()
    stranger.proofs[0] = "of 0"
    again.job.refresh()
    assert again.job.members.users == ["0", "1", "2"]


def test_a_key_that_is_the_same_may_have_a_new_state_dir() -> None:
    """Its state-dir was lost: its new proof counts from then on."""
    book: dict[str, Owner] = {}
    owners = Owners(KnownDevices(book), registered=True)
    owners.enter("a", Owner("key", "old"))
    assert owners.refusal("a", Owner("other", "new"))
    assert not owners.refusal("a", Owner("key", "new"))
    owners.enter("a", Owner("key", "new"))
    assert book["a"] == Owner("key", "new")
    assert not owners.refusal("a", Owner("other", "new"))
    assert owners.refusal("a", Owner("other", "old"))


def test_what_a_device_proves_itself_with(tmp_path: Path) -> None:
    """The same after every start, another in another run, and nobody else may read the secret."""
    word = proof_of(tmp_path, "run")
    assert word == proof_of(tmp_path, "run") and len(word) == 64
    assert word != proof_of(tmp_path, "other")
    assert (tmp_path / SECRET).stat().st_mode & 0o777 == 0o600
    assert proof_of(None, "run") == ""
    (tmp_path / SECRET).write_bytes(b"cut")
    assert proof_of(tmp_path, "run") not in (word, "")
    assert [path.name for path in tmp_path.iterdir()] == [SECRET]


def test_in_a_simulation_nothing_of_it_is_written_down() -> None:
    """20,000 users would cost megabytes in every checkpoint."""
    strategy, result, _ = reference("fedavg")
    assert strategy.members.known.owners == {} and strategy.members.known.standings == {}
    assert result.summaries[0].findings == []
