"""The path on which models are trained is chosen once a run, and all of the run keeps to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.app.run import recorder
from corsage.core.config import Config
from corsage.core.errors import ConfigError, ModelError, Refused
from corsage.core.fields import declared
from corsage.core.groups import ModelKeys, TrainKeys
from corsage.core.limits import Limits
from corsage.core.wire import Settings
from corsage.networks import build, kept_choice
from corsage.networks.build import build_network
from corsage.networks.choice import Choice
from corsage.networks.together import descended
from tests.support.federations import federate, same_arrays
from tests.support.resuming import Resume, Stop

OWN = {"model": "tests.support.own_models:Gelu", "dataset": "digits"}


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """What the next measurement comes to: its first entry. Nothing was measured before."""
    names = ["together-4"]
    build.choose_path.cache_clear()
    monkeypatch.setattr(kept_choice, "choose", lambda *_: Choice(names[0], "it was measured"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield names
    build.choose_path.cache_clear()


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that nodes took, a name for each group of users."""
    found: list[str] = []

    def watched(job: Any, *rest: Any) -> Any:
        found.append(job.network.path.name)
        return descended(job, *rest)

    monkeypatch.setattr("corsage.networks.parts.descended", watched)
    return found


def test_it_is_said_in_one_line(chosen: list[str], trained: list[str]) -> None:
    strategy, _, notes = federate("fedavg", **OWN)
    assert [n for n in notes.notes if "path" in n] == ["training-path=together-4: it was measured"]
    assert strategy.progress.training_path == "together-4" and set(trained) == {"together-4"}


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


def test_the_next_run_takes_it_again_and_measures_where_the_file_is_not_there(
    chosen: list[str], trained: list[str], tmp_path: Path
) -> None:
    """A process of its own measures nothing twice, whatever a measurement would come to now."""

    def runs(**more: Any) -> str:
        build.choose_path.cache_clear()
        strategy, _, notes = federate("fedavg", **{**OWN, **more}, num_rounds=1)
        (said,) = [n for n in notes.notes if "path" in n]
        assert said.startswith(f"training-path={strategy.progress.training_path}: it was measured")
        return strategy.progress.training_path + (" again" if "measured earlier" in said else "")

    assert runs() == "together-4"
    chosen[0] = "together-10"
    assert runs() == "together-4 again"
    assert runs(batch_size=7) == "together-10"
    for content in ("", "[1]", '{"name": "layers", "why": "so"}', '{"name": 4}'):
        (kept,) = [f for f in tmp_path.rglob("paths/*") if "together-4" in f.read_text()]
        kept.write_text(content)
        chosen[0] = "together-4"
        assert runs() == "together-4"


def test_no_batch_is_tried_that_nobody_has(
    chosen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch size beyond all data is a way to say: all of one's data."""
    tried: list[int] = []

    def measured(*facts: Any) -> Choice:
        tried.append(facts[3].batch_size)
        return Choice(chosen[0], "it was measured")

    monkeypatch.setattr(kept_choice, "choose", measured)
    strategy, _, _ = federate("fedavg", **OWN, num_rounds=1, batch_size=10**9)
    assert tried == [max(m.train for m in strategy.federation.roster.members.values())]


def test_a_path_that_is_exact_no_more_is_not_taken(
    chosen: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `forward` may change where names and shapes do not."""
    net, keys = build_network(ModelKeys(model=OWN["model"]), (64,), 3, 0), TrainKeys()
    assert kept_choice.choose_again(net, (64,), 3, keys, tmp_path).name == "together-4"
    monkeypatch.setattr(net, "stochastic", True)
    chosen[0] = "loop"
    assert kept_choice.choose_again(net, (64,), 3, keys, tmp_path).name == "loop"
    chosen[0] = "together-4"
    assert kept_choice.choose_again(net, (64,), 3, keys, tmp_path).name == "loop"


def test_a_folder_that_cannot_be_written_is_said(
    chosen: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    net = build_network(ModelKeys(model=OWN["model"]), (64,), 3, 0)
    (tmp_path / "file").write_text("")
    found = kept_choice.choose_again(net, (64,), 3, TrainKeys(), tmp_path / "file")
    assert found.name == "together-4" and "measures its model anew" in caplog.text


def test_a_resumed_run_keeps_to_it(chosen: list[str], trained: list[str], tmp_path: Path) -> None:
    whole, wanted, _ = federate("fedavg", **OWN)
    path, grid = tmp_path / "checkpoint", LocalGrid(app, 2)
    with pytest.raises(KeyboardInterrupt):
        type(whole)(whole.config, [Stop(path, after=3)], experiment="e").start(grid)
    chosen[0] = "together-10"
    build.choose_path.cache_clear()
    trained.clear()
    again = type(whole)(whole.config, [Resume(path, 2)], experiment="e")
    result = again.start(grid)
    assert set(trained) == {"together-4"} and again.progress.training_path == "together-4"
    assert same_arrays(result.arrays, wanted.arrays, tolerance=1e-6)


def test_later_strategies_of_a_run_folder_take_that_of_the_first(tmp_path: Path) -> None:
    assert recorder.path_of(tmp_path) == ""
    recorder.keep_path(tmp_path, "together-10")
    assert recorder.path_of(tmp_path) == "together-10"
    (tmp_path / recorder.TRAINING_PATH).write_text('"together-99"')
    assert recorder.path_of(tmp_path) == ""


def test_built_in_models_say_nothing_and_keep_their_kernels(trained: list[str]) -> None:
    strategy, _, notes = federate("fedavg")
    assert strategy.progress.training_path == "layers" and not trained
    assert not [n for n in notes.notes if "path" in n]


def test_what_cannot_be_traced_goes_one_by_one_with_its_line(trained: list[str]) -> None:
    build.choose_path.cache_clear()
    model = "tests.support.own_models:Dropping"
    strategy, _, notes = federate("fedavg", **{**OWN, "model": model}, num_rounds=1)
    (said,) = [n for n in notes.notes if "path" in n]
    assert strategy.progress.training_path == "loop" and not trained
    assert said.endswith("users one by one: it draws random numbers in training")


def test_a_path_that_a_model_cannot_take_is_refused_in_one_line() -> None:
    dropping = ModelKeys(model="tests.support.own_models:Dropping", training_path="together-4")
    with pytest.raises(ModelError, match=r"together-4: not with this model: it draws random"):
        build_network(dropping, (64,), 3, 0)
    with pytest.raises(ModelError, match="no chain of plain layers"):
        build_network(ModelKeys(model=OWN["model"], training_path="layers"), (64,), 3, 0)
    with pytest.raises(ModelError, match="images with their channels last"):
        build_network(ModelKeys(training_path="loop-channels-last"), (64,), 3, 0)


MODEL = declared(Settings, "settings")["model"].kind


@pytest.mark.parametrize("name", ["together-5", "together", "", "__import__('os')", 4])
def test_only_names_of_the_table_come_in(name: Any) -> None:
    with pytest.raises(ConfigError):
        Config.parse({"training-path": name})
    with pytest.raises(Refused, match="training-path"):
        MODEL("keys", {"keys": {"training-path": name}}, Limits())
