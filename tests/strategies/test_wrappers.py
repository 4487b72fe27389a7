"""Flower's differential privacy: what it protects is a user, or it is refused in one line."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
from flwr.serverapp.strategy import Strategy as FlowerStrategy

from corsage.app.client_app import app, make_client_app
from corsage.app.local_grid import LocalGrid
from corsage.app.results.metrics import read_rows
from corsage.app.run.endings import read_result
from corsage.app.run.recorder import Recorder
from corsage.core.errors import ConfigError, CorsageError, ModelError, RoundFailed
from corsage.core.messages.encoding import encode
from corsage.core.registry import ALGORITHMS
from corsage.strategies import strategy_class
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.callbacks import Callback
from corsage.strategies.rounds.wrappers import around
from tests.support.federations import ONE_MEAN, Notes, federate, same_arrays, settings
from tests.support.grids import Watched

WRAPPERS: dict[str, Any] = {
    "server, fixed": lambda s: DifferentialPrivacyServerSideFixedClipping(s, 0.0, 0.05, 6),
    "server, adaptive": lambda s: DifferentialPrivacyServerSideAdaptiveClipping(s, 0.0, 6),
    "client, fixed": lambda s: DifferentialPrivacyClientSideFixedClipping(s, 0.0, 0.05, 6),
    "client, adaptive": lambda s: DifferentialPrivacyClientSideAdaptiveClipping(s, 0.0, 6),
}


def made(name: str = "fedavg", callbacks: Any = (), experiment: str = "", **keys: Any) -> Any:
    return strategy_class(name)(settings(name, **keys), callbacks, experiment)


def started(strategy: Strategy[Any, Any], grid: LocalGrid | None = None, **more: Any) -> Any:
    """A run under the wrapper that clips at .05, as a user of Flower's starts it."""
    grid = grid or LocalGrid(app, 12)
    first = more.pop("first", None) or strategy.arrays(grid)
    wrapper = more.pop("wrapper", WRAPPERS["server, fixed"])(strategy)
    return wrapper.start(grid, first, **{"num_rounds": 4, **more})


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in ONE_MEAN])
def test_over_strategies_that_send_other_things_they_are_refused(name: str, wrapper: str) -> None:
    with pytest.raises(ConfigError) as refused:
        started(made(name), wrapper=WRAPPERS[wrapper])
    text = str(refused.value)
    assert f"not over strategy={name}: it clips a model" in text and "\n" not in text


@pytest.mark.parametrize(
    ("keys", "nodes", "words"),
    [
        ({}, 3, "12 users are on 3 nodes.*num-nodes=12"),
        ({"weighting": "examples"}, 12, "weighting=uniform, not examples"),
        ({"robust": "median"}, 12, "robust=median users' arrays come as rows"),
        ({"end_heads": "auto"}, 12, "end-heads sends means of features, .* no noise"),
        ({"fraction_train": 0.25}, 12, "num_sampled_clients=6, but a round has 3 users"),
        ({"name": "pfedme", "pfedme_beta": 1.5}, 12, "1.5 times the way.*would be too small"),
    ],
)
def test_what_would_protect_less_is_refused(keys: dict[str, Any], nodes: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        started(made(**keys), LocalGrid(app, nodes))


class Between(FlowerStrategy):
    """A strategy of somebody's that hands on what it is asked, in a thread of its own or not."""

    def __init__(self, inner: FlowerStrategy, thread: bool) -> None:
        self.inner, self.thread = inner, thread

    def configure_train(this, *given: Any) -> Any:  # noqa: N805  # it need not be called self
        if not this.thread:
            return this.inner.configure_train(*given)
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(this.inner.configure_train, *given).result()

    def aggregate_train(self, *given: Any) -> Any:
        return self.inner.aggregate_train(*given)

    def configure_evaluate(self, *given: Any) -> Any:
        return self.inner.configure_evaluate(*given)

    def aggregate_evaluate(self, *given: Any) -> Any:
        return self.inner.aggregate_evaluate(*given)

    def summary(self) -> None:
        self.inner.summary()


@pytest.mark.parametrize("thread", [False, True])
def test_a_wrapper_is_known_though_something_is_between(thread: bool) -> None:
    def wrapped(strategy: Any) -> Any:
        return WRAPPERS["server, fixed"](Between(strategy, thread))

    with pytest.raises(ConfigError, match="12 users are on 3 nodes"):
        started(made(), LocalGrid(app, 3), wrapper=wrapped)
    direct, between = made(num_rounds=2), made(num_rounds=2)
    started(direct, num_rounds=2)
    started(between, num_rounds=2, wrapper=wrapped)
    assert same_arrays(direct.named_arrays(), between.named_arrays(), tolerance=0)
    other = WRAPPERS["server, fixed"](made())
    assert around(other.strategy) == []


def test_one_bad_user_neither_ends_the_run_nor_takes_protection_away_unsaid() -> None:
    """It is not set aside where the noise is for as many users as there are with it."""

    class Bad(LocalGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            for reply in super().pull_messages(message_ids):
                numbers = reply.content.metric_records
                if reply.metadata.message_type == "train" and "1" in list(
                    reply.content.config_records["config"]["users"]  # type: ignore[arg-type]
                ):
                    numbers["metrics"]["num-examples"] = [float("nan")]
                yield reply

    notes = Notes()
    strategy = made(callbacks=[notes])
    started(strategy, Bad(app, 12), num_rounds=4)
    assert strategy.progress.round == 4 and strategy.progress.dropped.keys() == {"1"}
    wanted = "its noise is for 6 users, but the mean is of 5: they are protected 1.2 times less"
    assert any(wanted in note for note in notes.notes)


@pytest.mark.parametrize("wrapper", ["server, fixed", "client, fixed"])
def test_the_noise_is_what_flowers_formula_says(wrapper: str) -> None:
    """stdev = noise_multiplier clipping_norm / num_sampled_clients, on the mean of clipped ones."""
    kind = type(WRAPPERS[wrapper](made()))
    quiet, loud = made(num_rounds=1), made(num_rounds=1)
    started(quiet, num_rounds=1, wrapper=lambda s: kind(s, 0.0, 0.05, 6))
    started(loud, num_rounds=1, wrapper=lambda s: kind(s, 2.0, 0.05, 6))
    noise = loud.state.model - quiet.state.model
    assert noise.std() == pytest.approx(2.0 * 0.05 / 6, rel=0.12)


def test_other_wrappers_and_flowers_own_loop_are_none_of_these() -> None:
    strategy, grid = made(num_rounds=1), LocalGrid(app, 1)
    FlowerStrategy.start(strategy, grid, strategy.arrays(grid), num_rounds=1)
    assert strategy.progress.round == 1


@pytest.mark.parametrize("name", ["fedavg", "fedrep"])
def test_a_state_dict_may_be_what_it_begins_with(name: str) -> None:
    """It clips what users send relative to that model, and keeps the caller's record as it was."""
    other, _, _ = federate(name, num_rounds=1, seed=7)
    given = other.named_arrays()
    names = list(given)
    strategy = made(name)
    found = started(strategy, first=given)
    again = made(name)
    started(again, first=encode(other.shared()))
    assert same_arrays(strategy.named_arrays(), again.named_arrays(), tolerance=0)
    assert list(given) == names and found.arrays is not None
    free = started(made(name), first=given, num_rounds=1, wrapper=unclipped)
    plain = made(name, num_rounds=1)
    plain.start(LocalGrid(app, 12), given)
    part = next(iter(free.arrays))
    np.testing.assert_allclose(free.arrays[part].numpy(), plain.shared()[part], atol=1e-6)


def unclipped(strategy: Any) -> Any:
    return DifferentialPrivacyServerSideFixedClipping(strategy, 0.0, 1e9, 6)


def recorder(folder: Path, strategy: str) -> Recorder:
    return Recorder(folder, {"run": "x", "strategy": strategy}, settings(strategy))


@pytest.mark.parametrize("name", ["fedavg", "fedrep"])
def test_without_clipping_a_run_leaves_behind_what_start_leaves(name: str, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"fine_tune_epochs": 2, "evaluate_every": 1}
    for folder, drive in (("start", None), ("wrapper", unclipped)):
        strategy = made(name, [recorder(tmp_path / folder / name, name)], "one", **keys)
        if drive:
            started(strategy, wrapper=drive)
        else:
            strategy.start(LocalGrid(app, 12))
    rows = [read_rows(tmp_path / folder / name) for folder in ("start", "wrapper")]
    assert len(rows[0]) == len(rows[1]) == 4
    for one, other in zip(*rows, strict=True):
        assert one["accuracy"]["mean"] == pytest.approx(other["accuracy"]["mean"], abs=0.02)
        assert one["bytes_up"] == other["bytes_up"] and one["messages"] == other["messages"]
    results = [read_result(tmp_path / folder / name, 4) or [] for folder in ("start", "wrapper")]
    assert all(results)
    assert [r["strategy"] for r in results[0]] == [r["strategy"] for r in results[1]]
    assert [len(r["curve"]) for r in results[0]] == [len(r["curve"]) for r in results[1]]
    assert (tmp_path / "wrapper" / name / "model.safetensors").exists()


class Dies(Callback):
    """Ends the process, as it were, at the start of round 3."""

    def on_round_start(self, strategy: Strategy[Any, Any], number: int) -> None:
        if number == 3:
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["fedavg", "fedrep"])
def test_a_run_under_a_wrapper_is_resumed_to_the_same_end(name: str, tmp_path: Path) -> None:
    def run(where: str, grid: LocalGrid, *more: Callback) -> Any:
        strategy = made(name, [recorder(tmp_path / where / name, name), *more], "one")
        strategy.job.state_dir = str(tmp_path / "users" / where)
        started(strategy, grid)
        return strategy

    whole = run("whole", LocalGrid(app, 12))
    with pytest.raises(KeyboardInterrupt):
        run("cut", LocalGrid(app, 12), Dies())
    assert not (tmp_path / "cut" / name / "result.json").exists()
    notes = Notes()
    cut = run("cut", LocalGrid(app, 12), notes)
    assert [row["round"] for row in notes.rows] == [3, 4]
    assert cut.progress.round == 4
    assert same_arrays(cut.named_arrays(), whole.named_arrays(), tolerance=0)
    ends = [read_result(tmp_path / folder / name, 4) or [] for folder in ("cut", "whole")]
    assert ends[0][0]["per_user"] == ends[1][0]["per_user"]
    assert ends[0][0]["curve"] == ends[1][0]["curve"]


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (lambda a: np.full_like(a, np.nan), "model is not finite"),
        (lambda a: np.full(a.shape, 1e300), "model is not finite"),
        (lambda a: a[:-1], "model has shape"),
        (lambda a: a.astype("U8"), "not of numbers"),
    ],
)
def test_arrays_that_are_handed_in_are_checked(array: Any, words: str) -> None:
    strategy, grid = made(), LocalGrid(app, 1)
    before = strategy.arrays(grid)
    bad = encode({"model": array(before["model"].numpy())})
    with pytest.raises(ModelError, match=words):
        list(strategy.configure_train(1, bad, ConfigRecord(), grid))
    assert same_arrays(strategy.arrays(grid), before, tolerance=0)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_noise_without_bounds_ends_the_run_and_not_the_checkpoint(tmp_path: Path) -> None:
    strategy = made("fedavg", [recorder(tmp_path / "fedavg", "fedavg")])

    def endless(inner: Any) -> Any:
        return DifferentialPrivacyServerSideFixedClipping(inner, 1e300, 1.0, 6)

    with pytest.raises(ModelError, match="not finite"):
        started(strategy, wrapper=endless)
    assert not list((tmp_path / "fedavg").glob("checkpoint*"))


def test_an_exchange_that_a_wrapper_skips_is_asked_anew() -> None:
    """It takes no replies at all where one is an error; the messages have new ids."""
    fails = {1}

    class Once(Watched):
        def push_messages(self, messages: Any) -> Any:
            messages = list(messages)
            if fails and any(m.metadata.message_type == "train" for m in self.sent):
                fails.clear()
            return super().push_messages(messages)

    grid = Once(12, lambda number, task: bool(fails))
    strategy = made()
    started(strategy, grid, num_rounds=5)
    assert strategy.progress.round == 4
    sent = [id(message) for message, _ in grid.training()]
    assert len(sent) == len(set(sent)) == 5 * 6


@pytest.mark.parametrize("mod", [LocalDpMod(1.0, 1.0, 1.0, 0.5), fixedclipping_mod])
def test_a_mod_that_protects_a_node_is_refused_where_several_users_are_on_it(mod: Any) -> None:
    name = "LocalDpMod" if isinstance(mod, LocalDpMod) else "fixedclipping_mod"
    with pytest.raises(CorsageError) as refused:
        made().start(LocalGrid(make_client_app(train_mods=[mod]), 6))
    text = str(refused.value)
    assert f"{name} protects what a node sends" in text and "2 users" in text
    assert "\n" not in text


def test_where_one_node_hosts_several_users_only_that_node_is_refused() -> None:
    notes, mod = Notes(), LocalDpMod(1e9, 1e-9, 1e9, 0.5)
    strategy = made(callbacks=[notes])
    strategy.start(LocalGrid(make_client_app(train_mods=[mod]), 11))
    assert len(strategy.members.users) == 10
    assert any("LocalDpMod protects what a node sends" in note for note in notes.notes)


@pytest.mark.parametrize("name", ["l2gd", "ifca", "local"])
def test_a_method_of_other_arrays_than_its_model_is_refused_in_a_line(name: str) -> None:
    """Flower's mods answer the reply that they refuse, and not the message."""
    mod = LocalDpMod(1.0, 1.0, 1.0, 0.5)
    with pytest.raises(CorsageError, match=r"LocalDpMod expects .* take it out") as refused:
        made(name).start(LocalGrid(make_client_app(train_mods=[mod]), 12))
    assert "\n" not in str(refused.value)


def test_such_a_mod_is_for_training_only() -> None:
    with pytest.raises(ConfigError, match="adaptiveclipping_mod: give it as one of train_mods"):
        make_client_app(mods=[adaptiveclipping_mod])


def test_a_driver_that_never_evaluates_is_told_of_rounds_too() -> None:
    notes, grid = Notes(), LocalGrid(app, 1)
    strategy = made(callbacks=[notes])
    for number in range(1, 4):
        messages = list(strategy.configure_train(number, ArrayRecord(), ConfigRecord(), grid))
        strategy.aggregate_train(number, grid.send_and_receive(messages))
    assert [row["round"] for row in notes.rows] == [1, 2]


def test_a_round_whose_evaluation_fails_is_told_later() -> None:
    notes, grid = Notes(), LocalGrid(app, 1)
    strategy = made(callbacks=[notes])
    messages = list(strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid))
    strategy.aggregate_train(1, grid.send_and_receive(messages))
    assert list(strategy.configure_evaluate(1, ArrayRecord(), ConfigRecord(), grid))
    with pytest.raises(RoundFailed):
        strategy.aggregate_evaluate(1, [])
    assert notes.rows == []
    assert list(strategy.configure_train(2, ArrayRecord(), ConfigRecord(), grid))
    assert [row["round"] for row in notes.rows] == [1]
