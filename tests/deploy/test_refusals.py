"""What a device does not do, whatever a server asks: one by one."""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from flwr.app import Context, Message, RecordDict

from corsage.app.client_app import make_client_app
from corsage.app.deployment.shelf import build
from corsage.app.nodes import deployed, device
from corsage.app.nodes.answers import TimeUp, time_limit
from corsage.benchmarks.device.attacks import Attack
from corsage.benchmarks.device.messages import honest
from corsage.benchmarks.device.target import LIMITS, SECRET, Target
from corsage.core.configuration.key_groups import ModelKeys, TrainKeys
from corsage.core.keys import names
from corsage.core.messages.aboard import packed, split
from corsage.core.messages.limits import Limits
from corsage.core.registry import algorithm_keys
from corsage.core.tables.column_facts import CATEGORY
from corsage.core.tables.preparation import Column, Preparation
from tests.support import recipe


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


def test_a_signed_app_names_its_end_and_the_keys_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundle says so itself; what is asked for by a message counts, not what a server says."""
    monkeypatch.setattr(device, "APP", tmp_path / "bundle")
    target = Target(tmp_path)

    def terms(days: int, keys: list[str]) -> None:
        content = build(recipe.app(tmp_path / "app"), int(time.time()) + 86400 * days, keys)
        shutil.rmtree(tmp_path / "app")
        with ZipFile(BytesIO(content)) as bundle:
            bundle.extractall(tmp_path / "bundle")
        device.terms_of.cache_clear()
        device.terms_of(device.APP)  # read once, before anything is watched

    honest_keys = ["batch-size", "fine-tune-epochs", "head", "hidden", "lr", "model"]
    for kind in ("train", "query"):
        draft = honest("fedavg", kind)
        draft.settings["keys"]["local-epochs"] = 3
        terms(1, [])
        reply = target.strike(Attack("all keys", draft.message()))
        assert reply is not None and not reply.has_error()
        terms(1, honest_keys)
        why = reason(target, draft.message())
        assert "local-epochs=3: the app's signature lets a run set these keys alone: batch" in why
        terms(1, [*honest_keys, "local-epochs"])
        reply = target.strike(Attack("named", draft.message()))
        assert reply is not None and not reply.has_error(), reply.error.reason
        other = honest("mixed-model", kind)
        other.settings["keys"] = {}
        assert "strategy=mixed-model: the app's signature" in reason(target, other.message())
        terms(1, [*honest_keys, "strategy"])
        assert "lets no run set it" not in str(target.strike(Attack("set", other.message())))
        terms(-1, [])
        reply = target.strike(Attack("ended", draft.message()))
        assert reply is not None and "the app's signature ended on" in str(reply.error.reason)
    assert not target.wrong
    device.terms_of.cache_clear()


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


@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
def test_what_nobody_declared_is_refused(target: Target, kind: str) -> None:
    for place, why in (("config", "nobody here takes such an option"), ("settings", "unknown; is")):
        draft = honest("fedavg", kind)
        getattr(draft, place)["colour"] = "red"
        said = reason(target, draft.message())
        assert "colour" in said and why in said


def test_versions_are_numbers(target: Target) -> None:
    draft = honest("fedrep", "train")
    draft.config["versions"] = ["../../../outside/secret"] * 2
    why = reason(target, draft.message())
    assert "versions[0]=../../../outside/secret: not a whole number" in why


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
    assert find_spec(deployed.CLIENT_PROCESS) and deployed.CLIENT_PROCESS not in sys.modules
    monkeypatch.setitem(sys.modules, deployed.CLIENT_PROCESS, None)
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
        "min-share",  # the more, the less is sent
        "knn-per-k",  # at most the samples that a user has
        "lr-step-rounds",  # the server's: a device is told the lr of its round
    }
    server = {"l2gd-coins", "ifca-clusters", "lg-fedavg-warmup-rounds", "fedmtl-inner-rounds"}
    server |= {"convex-neighbours", "convex-certify-every", "local-clusters-number"}
    server |= {"known-iterations", "known-refine", "mixed-em-rounds", "fedrep-convex-neighbours"}
    server |= {"fedfomo-models", "fedem-components", "fedrep-exact-components"}
    server |= {"fedrep-exact-body-rounds"}
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
