"""The path on which models are trained is chosen once a run, and all of the run keeps to it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.app.run import recorder
from corsage.core.configuration.config import Config
from corsage.core.configuration.key_groups import ModelKeys
from corsage.core.errors import ConfigError, ModelError, Refused
from corsage.core.messages.fields import declared
from corsage.core.messages.limits import Limits
from corsage.core.messages.wire import Settings
from corsage.networks.local_training import network_on_its_path
from corsage.networks.together import path_choice as choice
from corsage.networks.together.parts import descended
from corsage.networks.together.path_choice import Choice
from tests.support.federations import federate, same_arrays
from tests.support.resuming import Resume, Stop

OWN = {"model": "tests.support.own_models:Gelu", "dataset": "digits"}


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The next choice: its first entry. Nothing was chosen before."""
    names = ["together-4"]
    choice.choose_path.cache_clear()
    monkeypatch.setattr(choice, "choose", lambda *_: Choice(names[0], "it is small"))
    yield names
    choice.choose_path.cache_clear()


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that nodes took, a name for each group of users."""
    found: list[str] = []

    def watched(job: Any, *rest: Any) -> Any:
        found.append(job.network.path.name)
        return descended(job, *rest)

    monkeypatch.setattr("corsage.networks.together.parts.descended", watched)
    return found


def test_users_convolved_one_by_one_are_the_same_bits_on_any_number_of_nodes(
    tmp_path: Path,
) -> None:
    """Together the kernel depends on how many they are: the last bits may be others."""
    rng, path = np.random.default_rng(0), tmp_path / "images.npz"
    labels, users = rng.integers(0, 3, 120), rng.integers(0, 6, 120)
    images = rng.normal(size=(120, 1, 28, 28)).astype(np.float32) + labels[:, None, None, None]
    np.savez(path, x=images, label=labels, user=users)
    keys = {"dataset": "npz", "data_file": str(path), "partition": "natural", "num_users": 0}
    keys |= {"model": "lenet", "num_rounds": 2, "cache_dir": str(tmp_path)}
    for way, tolerance in (("loop", 0.0), ("layers", 1e-6)):
        one, *others = (federate("fedavg", n, training_path=way, **keys)[1] for n in (1, 2, 6))
        assert all(same_arrays(one.arrays, other.arrays, tolerance) for other in others)


def test_it_is_said_in_one_line(chosen: list[str], trained: list[str]) -> None:
    strategy, _, notes = federate("fedavg", **OWN)
    assert [n for n in notes.notes if "path" in n] == ["training-path=together-4: it is small"]
    assert strategy.job.built.training_path == "together-4" and set(trained) == {"together-4"}


@pytest.mark.parametrize("name", ["fedavg", "fedrep", "ditto", "apfl"])
def test_every_node_takes_it_and_numbers_are_those_of_the_loop(
    name: str, chosen: list[str], trained: list[str]
) -> None:
    _, together, _ = federate(name, **OWN)
    _, several, _ = federate(name, 3, **OWN)
    assert set(trained) == {"together-4"} or name == "apfl"
    _, alone, _ = federate(name, **OWN, training_path="loop")
    assert same_arrays(together.arrays, several.arrays)
    assert same_arrays(together.arrays, alone.arrays)


COLD = """
import hashlib, json, os, time
from pathlib import Path
SLOW and setattr(time, "process_time", lambda clock=time.process_time: -clock())
SLOW and setattr(os, "cpu_count", lambda: 64)
from tests.support.federations import federate
strategy, result, _ = federate("fedavg", **OWN)
values = b"".join(result.arrays[name].numpy().tobytes() for name in sorted(result.arrays))
print(strategy.job.built.training_path, hashlib.sha256(values).hexdigest())
"""


@pytest.mark.slow  # two processes, of which one is slow
def test_two_cold_runs_are_equal_bit_for_bit_on_another_machine_too(tmp_path: Path) -> None:
    """A machine whose slowest way is the quickest by the clock, and with other processors."""

    def start(slow: bool) -> subprocess.Popen[str]:
        code = f"SLOW, OWN = {slow}, {OWN}\n{COLD}"
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / str(slow))}
        return subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True
        )

    both = [start(slow).communicate(timeout=300)[0] for slow in (False, True)]
    assert both[0].startswith("together-10 ") and both[0] == both[1]
    assert not list(tmp_path.rglob("*path*"))


@pytest.mark.parametrize(("users", "on_devices", "wanted"), [(2, 0, 2), (9, 0, 9), (9, 3, 3)])
def test_users_count_by_the_device_and_in_a_simulation_all(
    users: int, on_devices: int, wanted: int, chosen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many nodes a simulation has depends on its machine, and may decide nothing."""
    seen: list[int] = []

    def noted(*facts: Any) -> Choice:
        seen.append(facts[4])
        return Choice("loop", "")

    monkeypatch.setattr(choice, "choose", noted)
    if on_devices:
        monkeypatch.setattr(LocalGrid, "simulated", False)
    federate("fedavg", on_devices or 2, **OWN, num_users=users, num_rounds=1)
    assert seen == [wanted]


def test_no_batch_is_tried_that_nobody_has(
    chosen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch size beyond all data is a way to say: all of one's data."""
    tried: list[int] = []

    def noted(*facts: Any) -> Choice:
        tried.append(facts[3].batch_size)
        return Choice(chosen[0], "it is small")

    monkeypatch.setattr(choice, "choose", noted)
    strategy, _, _ = federate("fedavg", **OWN, num_rounds=1, batch_size=10**9)
    assert tried == [max(m.train for m in strategy.members.everybody.values())]


def test_a_resumed_run_keeps_to_it(chosen: list[str], trained: list[str], tmp_path: Path) -> None:
    whole, wanted, _ = federate("fedavg", **OWN)
    path, grid = tmp_path / "checkpoint", LocalGrid(app, 2)
    with pytest.raises(KeyboardInterrupt):
        type(whole)(whole.config, [Stop(path, after=3)], experiment="e").start(grid)
    chosen[0] = "together-10"
    choice.choose_path.cache_clear()
    trained.clear()
    again = type(whole)(whole.config, [Resume(path, 2)], experiment="e")
    result = again.start(grid)
    assert set(trained) == {"together-4"} and again.job.built.training_path == "together-4"
    assert same_arrays(result.arrays, wanted.arrays, tolerance=1e-6)


def test_later_strategies_of_a_run_folder_take_that_of_the_first(tmp_path: Path) -> None:
    assert recorder.path_of(tmp_path) == ""
    recorder.keep_path(tmp_path, "together-10")
    assert recorder.path_of(tmp_path) == "together-10"
    (tmp_path / recorder.TRAINING_PATH).write_text('"together-99"')
    assert recorder.path_of(tmp_path) == ""


def test_built_in_models_say_nothing_and_keep_their_kernels(trained: list[str]) -> None:
    strategy, _, notes = federate("fedavg")
    assert strategy.job.built.training_path == "layers" and not trained
    assert not [n for n in notes.notes if "path" in n]


def test_what_cannot_be_traced_goes_one_by_one_with_its_line(trained: list[str]) -> None:
    choice.choose_path.cache_clear()
    model = "tests.support.own_models:Dropping"
    strategy, _, notes = federate("fedavg", **{**OWN, "model": model}, num_rounds=1)
    (said,) = [n for n in notes.notes if "path" in n]
    assert strategy.job.built.training_path == "loop" and not trained
    assert said.endswith("users one by one: it draws random numbers in training")


def test_a_path_that_a_model_cannot_take_is_refused_in_one_line() -> None:
    dropping = ModelKeys(model="tests.support.own_models:Dropping", training_path="together-4")
    with pytest.raises(ModelError, match=r"together-4: not with this model: it draws random"):
        network_on_its_path(dropping, (64,), 3, 0)
    with pytest.raises(ModelError, match="no chain of plain layers"):
        network_on_its_path(ModelKeys(model=OWN["model"], training_path="layers"), (64,), 3, 0)
    with pytest.raises(ModelError, match="images with their channels last"):
        network_on_its_path(ModelKeys(training_path="loop-channels-last"), (64,), 3, 0)


MODEL = declared(Settings, "settings")["model"].kind


@pytest.mark.parametrize("name", ["together-5", "together", "", "__import__('os')", 4])
def test_only_names_of_the_table_come_in(name: Any) -> None:
    with pytest.raises(ConfigError):
        Config.parse({"training-path": name})
    with pytest.raises(Refused, match="training-path"):
        MODEL("keys", {"keys": {"training-path": name}}, Limits())
