"""Tools that are told of a run: TensorBoard, MLflow, Weights & Biases, CSV, all of them offline."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from corsage import simulate
from corsage.app.command import run
from corsage.app.results.metrics import read_rows
from corsage.app.run.status import group_of
from corsage.app.tracking import tracker
from corsage.app.tracking.csv_file import Csv
from corsage.app.tracking.tracker import Numbers, Part, Tracker, Trackers, of_round
from corsage.core.files import sealed
from corsage.strategies.rounds.loop import one_round
from tests.app.test_resume import line_of, only

QUICK = ["num-users=6", "num-rounds=5", "hidden=4", "fraction-train=0.5", "fine-tune-epochs=1"]
QUICK += ["strategy=fedavg", "measures=accuracy,log-loss", "evaluate-every=1"]
ALL = "tensorboard,mlflow,wandb"


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, patch: pytest.MonkeyPatch) -> Path:
    """A run that was stopped after round 3, with a checkpoint of round 2, and resumed.

    All tools were told of it from the start, but for `csv`: it came when the run was resumed.
    """
    for package in ("tensorboard", "mlflow", "wandb"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("told")
    patch.chdir(folder)
    patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
    patch.setenv("WANDB_MODE", "offline")
    words = [*QUICK, f"run-dir={folder / 'runs'}", "checkpoint-every=2", f"log-to={ALL}"]
    with pytest.MonkeyPatch.context() as stop:

        def until_three(strategy: Any) -> Any:
            if strategy.progress.round == 3:
                raise KeyboardInterrupt
            return one_round(strategy)

        stop.setattr("corsage.strategies.rounds.loop.one_round", until_three)
        assert run(words, "") == 130
    resume = ["--resume", str(only(folder / "runs")), f"log-to={ALL},csv"]
    assert run(resume, "") == 0
    return only(folder / "runs") / "fedavg"


@pytest.fixture(scope="module")
def rows(told: Path) -> list[dict[str, float]]:
    """What a tool must have been told: every number of every round."""
    found = [of_round(row) for row in read_rows(told)]
    assert len(found) == 5 and {"accuracy/mean", "log-loss/q10", "bytes_up"} <= {*found[0]}
    return found


def curves(rows: list[dict[str, float]]) -> dict[str, list[tuple[int, float]]]:
    """The points of each number but the seconds: round 3 was played twice."""
    names = {name for row in rows for name in row} - {"seconds"}
    numbered = list(enumerate(rows, 1))
    return {name: [(n, row[name]) for n, row in numbered if name in row] for name in names}


def without_time(values: dict[str, float]) -> dict[str, float]:
    """The same for one round."""
    return {name: value for name, value in values.items() if name != "seconds"}


def final(told: Path, row: str) -> float:
    """A row's measure in the summary."""
    results = json.loads((told.parent / "summary.json").read_text())["results"]
    return float(next(r for r in results if r["strategy"] == row)["accuracy"]["mean"])


def test_mlflow_is_told_each_round_once_in_one_run(told: Path, rows: list[Any]) -> None:
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name("corsage")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED" and found.info.run_name.startswith("fedavg ")
    assert found.data.params["num-users"] == "6" and found.data.params["strategy"] == "fedavg"
    assert "ditto-lambda" not in found.data.params
    assert found.data.tags["corsage.group"] == told.parent.name
    for name, points in curves(rows).items():
        history = sorted(client.get_metric_history(found.info.run_id, name), key=lambda m: m.step)
        assert [(metric.step, metric.value) for metric in history] == points
    metrics = found.data.metrics
    assert metrics["final/accuracy/mean"] == final(told, "fedavg")
    assert metrics["ft/accuracy/mean"] == final(told, "fedavg+ft")
    assert [file.path for file in client.list_artifacts(found.info.run_id)] == ["report.html"]


def test_wandb_is_told_each_round_once_in_one_run(told: Path, rows: list[Any]) -> None:
    from tests.support.wandb_file import history, records

    steps = history(told)
    assert [number for number, _ in steps] == [1, 2, 3, 4, 5]
    for (_, values), row in zip(steps, rows, strict=True):
        assert without_time(row).items() <= values.items()
    (file,) = told.glob("wandb/offline-run-*/*.wandb")  # that of the first attempt is gone
    kept = list(records(file))
    begun = next(r.run for r in kept if r.WhichOneof("record_type") == "run")
    assert begun.run_group == told.parent.name and begun.job_type == "fedavg"
    assert "num-users" in {item.key for item in begun.config.update}
    summary = [i for r in kept for i in r.summary.update]
    values = {"/".join(i.nested_key) or i.key: i.value_json for i in summary}
    assert json.loads(values["ft/accuracy/mean"]) == final(told, "fedavg+ft")
    assert any("report.html" in str(r.artifact) for r in kept)
    assert [r.exit.exit_code for r in kept if r.WhichOneof("record_type") == "exit"] == [0]


def test_tensorboard_shows_each_round_once(told: Path, rows: list[Any]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(told / "tensorboard")).Reload()
    for name, points in curves(rows).items():
        shown = events.Scalars(name)
        assert [event.step for event in shown] == [number for number, _ in points]
        assert [event.value for event in shown] == pytest.approx([value for _, value in points])
    assert "_hparams_/session_start_info" in events.summary_metadata
    (last,) = events.Scalars("ft/accuracy/mean")
    assert (last.step, last.value) == (5, pytest.approx(final(told, "fedavg+ft")))


def test_csv_has_also_the_rounds_before_it_was_asked_for(told: Path, rows: list[Any]) -> None:
    with (told / "metrics.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    found: dict[tuple[str, int], dict[str, float]] = {}
    for line in lines:
        values = found.setdefault((line["strategy"], int(line["round"])), {})
        assert line["measure"] not in values
        values[line["measure"]] = float(line["value"])
    assert [found["fedavg", number] for number in range(1, 6)] == rows
    assert found["fedavg+ft", 5]["accuracy/mean"] == final(told, "fedavg+ft")


class Away(Tracker):
    """A tool whose server is away from round 2 on."""

    name = "away"

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []
        self.left: list[bool] = []

    def begin(self, part: Part) -> int:
        return 0

    def log(self, number: int, values: Numbers) -> None:
        self.asked.append(number)
        if number == 2:
            raise ConnectionError("no route\nto host")

    def finish(self, number: int, rows: Any) -> None:
        raise AssertionError("it is told no more")

    def leave(self, report: Path | None, ended: bool) -> None:
        self.left.append(ended)
        raise ConnectionError


def test_a_tool_that_fails_is_named_once_and_the_run_goes_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    away = Away()
    keys: dict[str, Any] = {"num_users": 4, "num_rounds": 4, "hidden": "4"}
    found = simulate("local", callbacks=[away], **keys)
    assert found["local"].score == simulate("local", progress=False, **keys)["local"].score
    assert away.asked == [1, 2] and away.left == [True]
    said = [line for line in capfd.readouterr().err.splitlines() if "away:" in line]
    assert len(said) == 1 and "no route to host" in said[0] and "It is told no more" in said[0]


def test_from_python_each_strategy_has_a_folder_of_its_own(tmp_path: Path) -> None:
    simulate("local,fedavg", num_users=4, num_rounds=2, hidden="4", callbacks=[Csv(tmp_path)])
    simulate("local", num_users=4, num_rounds=2, hidden="4", callbacks=[Csv(tmp_path)])
    files = sorted(tmp_path.glob("*/metrics.csv"))
    names = [file.parent.name.partition("-")[0] for file in files]
    assert names == ["fedavg", "local", "local"]
    assert "\nlocal,2,accuracy/mean," in files[1].read_text()


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_is_refused_before_there_is_a_folder(
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = {"tensorboard": None, "mlflow": None, "wandb": SimpleNamespace(origin=None)}
    monkeypatch.setattr(tracker, "find_spec", lambda n: gone[n] if n == name else find_spec(n))
    for more in ([], ["seed=0,1"]):
        assert run([*QUICK, *more, f"run-dir={tmp_path}/runs", f"log-to=csv,{name}"], "") == 2
        want = f"corsage: log-to={name}: needs an extra: pip install 'corsage[{name}]'."
        assert line_of(capsys) == want
        assert not list(tmp_path.glob("runs/*"))


def test_a_server_that_is_away_is_refused_before_there_is_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert run([*QUICK, f"run-dir={tmp_path}/runs", "log-to=mlflow"], "") == 2
    assert line_of(capsys).startswith("corsage: log-to=mlflow: ")
    assert not list(tmp_path.glob("runs/*"))


def test_wandb_does_not_ask_for_a_key_in_the_middle_of_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    settings = SimpleNamespace(settings=SimpleNamespace(mode="online"))
    monkeypatch.setattr(wandb, "setup", lambda: settings)
    monkeypatch.setattr(wandb, "login", lambda prompt: False)
    assert run([*QUICK, f"run-dir={tmp_path}/runs", "log-to=wandb"], "") == 2
    want = "corsage: log-to=wandb: nobody is logged in: wandb login, or WANDB_MODE=offline."
    assert line_of(capsys) == want


def test_the_runs_of_a_study_are_a_group(tmp_path: Path) -> None:
    cell = tmp_path / "mine" / "runs" / "seed=3"
    (alone,) = Trackers(["csv"], cell, group_of(cell)).of("fedrep")
    assert (alone.group, alone.title) == ("seed=3", "fedrep seed=3")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "study.json").write_text(sealed({}))
    (one,) = Trackers(["csv"], cell, group_of(cell)).of("fedrep")
    assert (one.group, one.title, one.own) == ("mine", "fedrep seed=3", cell / "fedrep")
