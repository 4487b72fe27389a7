"""What a device does of what a server asks: all that is honest, and nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from corsage.app.client_app import make_client_app
from corsage.app.nodes import answers, deployed, outward
from corsage.app.nodes.patience import TimeUp, time_limit
from corsage.app.nodes.places import Places
from corsage.benchmarks.device.attacks import Attack, attack
from corsage.benchmarks.device.messages import ALL, honest
from corsage.benchmarks.device.target import LIMITS, SECRET, Target
from corsage.core.columns import CATEGORY
from corsage.core.errors import DataError
from corsage.core.groups import ModelKeys, TrainKeys
from corsage.core.keys import names
from corsage.core.limits import Limits
from corsage.core.preparation import Column, Preparation
from corsage.core.registry import ALGORITHMS, algorithm_keys
from corsage.core.together import packed, split
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.callbacks import Callback
from tests.support.devices import Devices
from tests.support.federations import federate, reference, settings

# What is honest.

FULL: dict[str, dict[str, Any]] = {
    "mixed-model": {"known_gamma": "auto", "known_lambda": "auto"},
    "async-al2sgd": {"known_p0": 0.2, "known_p": 0.3, "num_rounds": 4},
    "convex-clustering": {"convex_solver": "pdmm"},
    "lg-fedavg": {"lg_fedavg_warmup_rounds": 1},
    "fedrep-exact": {"fedrep_exact_centre": "clusters", "fedrep_exact_loss": "multinomial"},
}
"""Keys with which more is said than otherwise."""


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_honest_run_is_what_the_simulation_is(name: str, tmp_path: Path) -> None:
    """Nothing that a strategy sends is refused: new users, fine-tuning and questions included."""
    keys = {"num_rounds": 2, "new_users": 0.3, "fine_tune_epochs": 1, **FULL.get(name, {})}
    devices = Devices(tmp_path, settings(name, **keys), **{"max-threads": 1})
    _, result, notes = federate(name, grid=devices, **keys)
    _, simulated, _ = reference(name, **keys)
    assert not notes.notes
    for own, other in zip(result.summaries, simulated.summaries, strict=True):
        assert own.strategy == other.strategy and own.users == other.users
        assert own.score.mean == pytest.approx(other.score.mean, abs=1e-6)
        assert own.loss.mean == pytest.approx(other.loss.mean, rel=1e-4)


class Sterner(Callback):
    """After the first round the owner of one device allows less."""

    def __init__(self, devices: Devices) -> None:
        self.own = devices.node_config(3)

    def on_round_end(self, strategy: Strategy[Any, Any], row: dict[str, Any]) -> None:
        self.own["max-epochs"] = 2


def test_who_exceeds_a_limit_is_told_on_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line each: at the device, and at the server, which goes on with the others."""
    lines: list[str] = []
    monkeypatch.setattr(outward, "log", lambda level, text, *own: lines.append(text % own))
    keys = {"local_epochs": 3, "num_rounds": 2, "fraction_train": 1.0}
    keys["evaluate_with_training"] = False  # the first round ends before the second one begins
    devices = Devices(tmp_path, settings("fedavg", **keys))
    _, _, notes = federate("fedavg", callbacks=[Sterner(devices)], grid=devices, **keys)
    why = "local-epochs=3 is more than this device allows (max-epochs=2)"
    assert f"user 3 is dropped: train: {why}" in notes.notes
    assert [line for line in lines if why in line]


def test_a_folder_of_states_that_is_gone_is_made_again(target: Target) -> None:
    """A process that stays sees it as one that has just begun does."""
    assert not target.ask(honest("fedrep", "train").message()).has_error()
    for kind in ("query", "train"):
        shutil.rmtree(target.state)
        assert not target.ask(honest("fedrep", kind).message()).has_error()
        assert target.state.stat().st_mode & 0o777 == 0o700


def test_the_log_of_a_device_is_no_terminal_of_a_server(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(outward, "log", lambda level, text, *own: lines.append(text % own))
    draft = honest("fedavg", "train")
    draft.settings["keys"]["frozen"] = "\x1b[2J"
    assert target.ask(draft.message()).has_error()
    assert lines and all(line.isprintable() for line in lines)


def test_a_model_beyond_a_limit_is_never_sent(tmp_path: Path) -> None:
    """The server says which limit and which key; the others train, or the run does not begin."""
    keys = {"num_rounds": 1, "fraction_train": 1.0}
    devices = Devices(tmp_path, settings("fedavg", **keys))
    devices.node_config(3)["max-parameters"] = 100
    _, result, notes = federate("fedavg", grid=devices, **keys)
    why = (
        "and the node allows 100: raise max-parameters in its node config, or take a smaller model"
    )
    assert any("is left out: the model has" in line and why in line for line in notes.notes)
    assert "3" not in result.json()[0]["per_user"] and len(result.json()[0]["per_user"]) > 2
    for place in range(len(devices.contexts)):
        devices.node_config(place)["max-parameters"] = 100
    with pytest.raises(DataError, match="the node allows 100: raise max-parameters"):
        federate("fedavg", grid=devices, **keys)


def test_who_could_never_take_part_says_so_at_the_start(target: Target) -> None:
    target.context.node_config |= {"max-epochs": 1, "user": "ann"}
    draft = honest("fedavg", "query")
    draft.settings["keys"]["local-epochs"] = 2
    said = target.ask(draft.message()).error.reason
    assert said == "user ann: local-epochs=2 is more than this device allows (max-epochs=1)"


def test_a_second_run_of_another_algorithm_finds_no_state_of_the_first(tmp_path: Path) -> None:
    """What one algorithm never sends is what another one sends: `local` keeps a whole model."""
    target = Target(tmp_path)
    alone, spy = honest("local", "train"), honest("fedmtl", "train")
    assert not target.ask(alone.message()).has_error()
    spy.settings["experiment"] = alone.settings["experiment"]
    spy.settings["keys"]["local-epochs"] = 0
    spy.config["round"], spy.config["versions"] = 2, [1, 1]
    reply = target.ask(spy.message())
    config: Any = reply.content["config"]
    assert config["lost"] == ["ann", "bob"] and not config.get("users")


# What is not, one by one.


@pytest.fixture(params=[False, True], ids=["alone", "worker"])
def target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Target:
    """A device, whose process stands where a planted module could be imported from.

    It does each message's work in a process of its own, or in its resident worker.
    """
    target = Target(tmp_path, request.param)
    monkeypatch.chdir(target.outside)
    return target


def reason(target: Target, message: Message) -> str:
    """How a device refuses a message, which does no harm."""
    reply = target.strike(Attack("attack", message))
    assert not target.wrong and target.lives()
    assert reply is not None and reply.has_error()
    return str(reply.error.reason)


def test_what_is_on_board_is_read_as_if_it_came_alone(target: Target) -> None:
    """An evaluation on a training message: it is refused by itself, and the training is done."""
    train, evaluate = honest("fedavg", "train"), honest("fedavg", "evaluate")
    for users, why in ((["ann", "bob"], ""), (["ann", "eve"], "user eve is not this device's")):
        evaluate.config["users"] = users
        content = packed(train.content(), evaluate.content())
        reply = target.strike(Attack("on board", Message(content, 1, "train")))
        assert reply is not None and not target.wrong
        trained, evaluated = split(reply)
        assert trained.content["config"]["users"] == ["ann", "bob"]
        assert evaluated.has_error() == bool(why)
        assert not why or evaluated.error.reason == f"evaluate: {why}"


def test_a_file_of_the_servers_is_not_read(target: Target) -> None:
    for name in ("cluster-map", "data-file", "data-dir", "cache-dir"):
        for kind in ("train", "query"):
            draft = honest("fedavg", kind)
            draft.settings["keys"][name] = str(target.outside / "secret.json")
            reply = target.strike(Attack(name, draft.message()))
            assert reply is not None and not reply.has_error() and not target.wrong


@pytest.mark.parametrize("kind", ["train", "query"])
def test_a_preparation_does_not_fill_the_memory(target: Target, kind: str) -> None:
    """Each word that the server thinks of would be an input of every row."""
    file = target.home / "words.csv"
    rows = [f"ann,a,b,a,b,{i % 2}" for i in range(1000)]
    file.write_text("\n".join(["user,c0,c1,c2,c3,label", *rows]))
    target.context.node_config["data"] = str(file)
    for levels, refused in ((2, False), (1000, True)):
        words = tuple(f"w{k}" for k in range(levels))
        columns = tuple(Column(f"c{i}", CATEGORY, words) for i in range(4))
        width = 4 * levels
        plan = Preparation(columns, shift=(0.0,) * width, scale=(1.0,) * width)
        draft = honest("fedavg", "query")
        draft.kind, draft.settings["preparation"] = kind, plan.json()
        said = target.ask(draft.message())
        why = said.error.reason if said.has_error() else ""
        assert ("the inputs of all rows would take 4e+06 numbers" in why) == refused, why


def test_users_and_clusters_are_those_that_the_owner_says(target: Target) -> None:
    """Else any column's words could be had as the users' names."""
    draft = honest("fedavg", "query")
    draft.settings["keys"] |= {"user-column": "secret", "cluster-column": "secret"}
    reply = target.ask(draft.message())
    config: Any = reply.content["config"]
    assert config["users"] == ["ann", "bob"] and config["clusters"] == ["a", "a"]


def test_versions_are_numbers(target: Target) -> None:
    draft = honest("fedrep", "train")
    draft.config["versions"] = ["../../../outside/secret"] * 2
    assert "versions=../../../outside/secret: not a whole number" in reason(target, draft.message())


@pytest.mark.parametrize("model", ["os:_exit", "os:abort", "builtins:exit", "planted:factory"])
def test_no_code_of_the_servers_choice(target: Target, model: str) -> None:
    draft = honest("fedavg", "train")
    draft.settings["keys"]["model"] = model
    assert f"model={model} is not one of this device's (models=zoo)" in reason(
        target, draft.message()
    )


@pytest.mark.parametrize("name", ["planted:factory", "planted:leak"])
def test_an_error_of_the_owners_own_model_stays_on_the_device(target: Target, name: str) -> None:
    """The module that an owner names is imported; what it says of data or paths is its log's."""
    target.context.node_config["models"] = f"zoo,{name}"
    draft = honest("fedavg", "train")
    draft.settings["keys"]["model"] = name
    reply = target.ask(draft.message())
    assert reply.has_error() and SECRET not in reply.error.reason
    assert "the device's own log says more" in reply.error.reason


def test_a_file_that_cannot_be_read_is_the_owners_matter(tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text(f"x,label\n1,0\n2,0\n{SECRET},1\n")
    context = Context(1, 2, {"data": str(file), "user": "ann"}, RecordDict(), {})
    Target(tmp_path / "other")  # where messages can be made
    reply = make_client_app()(message=honest("fedavg", "query").message(), context=context)
    assert "DataError" in reply.error.reason and "the device's own log" in reply.error.reason
    assert SECRET not in reply.error.reason and str(tmp_path) not in reply.error.reason


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("local-epochs", 10**9, "local-epochs=1000000000 is more than this device allows (max-ep"),
        ("hidden", "1000000000", "parameters of the model="),
        ("hidden", "1,1,1000000000000000", "more than this device allows (max-parameters"),
        ("lr", float("nan"), "lr=nan: not a number"),
        ("lr", [0.1], "lr=a list of 1: not a value"),
        ("batch-size", 10**300, "batch-size: a huge number"),
        ("hidden", "1," * 600, "hidden: a text of 1200 characters"),
    ],
)
def test_keys_are_typed_and_bounded(target: Target, key: str, value: Any, said: str) -> None:
    draft = honest("fedavg", "train")
    draft.settings["keys"][key] = value
    assert said in reason(target, draft.message())


def test_a_device_takes_part_in_what_its_owner_names(target: Target) -> None:
    target.context.node_config["strategies"] = "fedavg, fedrep"
    said = "strategy=mixed-model is not one of this device's (strategies=fedavg,fedrep)"
    assert said in reason(target, honest("mixed-model", "query").message())
    assert not target.ask(honest("fedrep", "train").message()).has_error()


def test_what_it_computes_on_is_its_own_word(target: Target) -> None:
    draft = honest("fedavg", "train")
    draft.settings["keys"] |= {"device": "cuda", "torch-threads": 10**5}
    assert not target.ask(draft.message()).has_error()


@pytest.mark.parametrize(
    "own", [{"strategies": "fedrap"}, {"models": "zooo"}, {"max-epochs": "few"}, {"max-steps": 0}]
)
def test_limits_that_cannot_be_meant_are_refused(target: Target, own: dict[str, Any]) -> None:
    """A misspelt one would allow nothing, or everything."""
    target.context.node_config |= own
    reply = target.ask(honest("fedavg", "query").message())
    assert "ConfigError" in reply.error.reason


def test_matrices_of_all_parameters_are_bounded(target: Target) -> None:
    """A Hessian of a small network is larger than the network by far."""
    draft = honest("convex-clustering", "train", 2)
    draft.settings["keys"] |= {"model": "mlp", "hidden": "500", "loss": "auto"}
    assert "matrices of all parameters by all would take" in reason(target, draft.message())


def test_a_header_is_checked_before_anything_is_allocated(target: Target) -> None:
    draft = honest("fedavg", "train")
    content = draft.content()
    old: Any = content["arrays"]["model"]
    old.shape = (10**13,)
    assert "shape: array model is (10000000000000,), expected (38,)" in reason(
        target, Message(content, 1, "train")
    )


def test_a_super_node_without_data_is_no_simulation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else its server could say where files are read and written."""
    Target(tmp_path)
    own = {"partition-id": 0, "num-partitions": 1, "worker-seconds": 0}
    context = Context(1, 2, own, RecordDict(), {})
    assert not deployed.is_device(context)
    assert find_spec(deployed.CLIENT) and deployed.CLIENT not in sys.modules
    monkeypatch.setitem(sys.modules, deployed.CLIENT, None)
    assert deployed.is_device(context)
    reply = make_client_app()(message=honest("fedavg", "query").message(), context=context)
    assert "ConfigError" in reply.error.reason


def test_work_ends_when_its_time_is_up() -> None:
    with pytest.raises(TimeUp), time_limit(0.05):
        while True:
            with contextlib.suppress(Exception):  # what goes on with the next user
                time.sleep(0.001)
    with time_limit(60):
        pass
    timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    assert all(timer.finished.is_set() for timer in timers)


def test_a_message_that_takes_too_long_is_one_line(target: Target) -> None:
    target.context.node_config |= {"max-seconds": 0.2, "max-epochs": 10**5}
    target.context.node_config |= {"max-parameters": 10**8, "max-steps": 10**5}
    draft = honest("fedavg", "train")
    draft.settings["keys"] |= {"local-epochs": 10**5, "batch-size": 1}
    reply = target.ask(draft.message())
    assert "took more than this device allows (max-seconds=0.2)" in reply.error.reason
    target.context.node_config |= LIMITS
    assert target.lives()


def test_every_key_that_counts_work_has_a_limit() -> None:
    """A whole number of an algorithm is bounded by a limit, or does nothing at a device."""
    idle = {
        "fine-tune-epochs",  # checked where it is asked for
        "batch-size",  # at most the samples that there are
        "torch-threads",  # bounded by max-threads
        "augment-padding",  # an image stays as large as it is
        "lr-step-rounds",  # the server's: a device is told the lr of its round
    }
    server = {"l2gd-coins", "ifca-clusters", "lg-fedavg-warmup-rounds", "fedmtl-inner-rounds"}
    server |= {"convex-neighbours", "convex-certify-every", "local-clusters-number"}
    server |= {"known-iterations", "known-refine", "mixed-em-rounds", "fedrep-convex-neighbours"}
    server |= {"fedrep-exact-components", "fedrep-exact-body-rounds", "known-staleness"}
    free = {
        field.name.replace("_", "-")
        for group in (TrainKeys, ModelKeys, *algorithm_keys().values())
        for field in group.__dataclass_fields__.values()
        if field.type == "int" and not field.metadata["limit"]
    }
    assert free == idle | server


def test_the_page_names_every_limit() -> None:
    page = (Path(__file__).parents[2] / "docs" / "devices.md").read_text()
    for name in names(Limits):
        assert f"`{name}`" in page


# Many.


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


@pytest.mark.parametrize("part", range(5))
def test_hostile_messages_do_no_harm(struck: Target, part: int) -> None:
    """100 each, of all algorithms and kinds; 10,000: `python -m corsage.benchmarks fuzz-device`."""
    first = 100 * (part + 5 * struck.resident)
    for number in range(first, first + 100):
        struck.strike(attack(0, number, str(struck.outside)))
    assert not struck.wrong
    assert struck.refused > 0 and struck.answered > 0


def test_without_its_guard_a_device_obeys(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same attacks do harm, and the watch sees it: it is the guard that keeps them out."""
    monkeypatch.setattr(answers, "is_device", lambda context: False)
    monkeypatch.setattr(Places, "of", lambda *_: None)
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
