"""The command line as a user meets it: the main job, and every mistake as one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage.app.command import run
from corsage.app.help.commands import COMMANDS
from corsage.app.output.usage import exit_code
from corsage.app.states.database import Database
from corsage.app.states.store import states_of
from corsage.clients.base import Got, Sent
from corsage.clients.fedavg import FedAvgClient
from corsage.clients.fedrep.fedrep import FedRepClient
from corsage.core.configuration.config import Config
from corsage.core.keys import NoKeys
from corsage.core.version import VERSION
from corsage.networks.batches import Examples
from tests.support.clock import stopped

QUICK = ["num-users=8", "num-rounds=2", "head-epochs=1", "hidden=8", "fraction-train=0.5"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fail(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and the one line that says why."""
    code = run(words, "")
    assert code != 0
    lines = [x for x in capsys.readouterr().err.splitlines() if x.startswith("corsage: ")]
    assert len(lines) == 1
    return code, lines[0]


@pytest.mark.parametrize("module", ["corsage", "corsage.app.command"])
def test_the_module_itself_is_the_command(module: str) -> None:
    """It did nothing, and left with 0."""
    words = [sys.executable, "-m", module, "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == f"corsage {VERSION}\n"


def test_a_comparison_leaves_a_table_and_a_run_folder(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*QUICK, "--json", "out.json"], "") == 0
    out = capsys.readouterr().out
    folder = here / out.split("Run folder: ")[1].strip()
    summary = json.loads((here / "out.json").read_text())
    assert summary == json.loads((folder / "summary.json").read_text())
    rows = ["fedrep", "fedrep+own", "fedavg", "fedavg+ft", "fedavg+ft-all", "local"]
    assert [r["strategy"] for r in summary["results"]] == rows
    assert summary["config"] == {**Config.parse().flat(), **summary["config"]}
    for result in summary["results"]:
        assert {"mean", "std", "min", "q10", "q25", "median", "q75", "max"} == set(
            result["accuracy"]
        )
        values = list(result["per_user"].values())
        assert result["accuracy"]["mean"] == pytest.approx(np.mean(values))
        assert result["users"] == 8
        assert result["rounds"] == 2
    for name in ("report.html", "config.json"):
        assert (folder / name).stat().st_size > 100
    rows = [json.loads(x) for x in (folder / "fedrep" / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [1, 2]
    assert (folder / "fedrep" / "model.safetensors").exists()
    run_name = json.loads((folder / "config.json").read_text())["run"]
    states = states_of(folder, "fedrep", run_name)
    assert states.users() and all(states.versions(user)[-1] <= 2 for user in states.users())
    assert len(list((folder / "fedrep" / "users").iterdir())) <= 3


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_help_and_is_listed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"], "") == 0
    assert "usage: " in capsys.readouterr().out
    assert run(["--help"], "") == 0
    assert f"  {name} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["num-round=2"], "Did you mean num-rounds?"),
        (["strategy=fedprex"], "Did you mean"),
        (["dataset=digit"], "Did you mean digits?"),
        (["model=lenet5"], "Did you mean lenet?"),
        (["lr=-1"], "lr=-1.0: must be at least 0"),
        (["num-users=5000"], "num-users=5000"),
        (["num-nodes=9", "num-users=8"], "more nodes than users"),
        (["test-fraction=0"], "test-fraction=0: nothing is held out"),
        (["dataset=mnist", "data-dir=nowhere"], "train-images-idx3-ubyte"),
        (["dataset=csv", "data-file=absent.csv"], "absent.csv"),
        (["model=lenet"], "lenet"),
        (["model=nowhere:factory"], "nowhere"),
        (["head=fc9"], "fc9"),
        (["--resume", "nowhere"], "there is no such folder"),
        (["--json", "no/such/folder/x.json"], "folder does not exist"),
        (["partition=classes", "classes-per-user=11"], "11"),
        (["device=cuda:7"], "device=cuda:7"),
    ],
)
def test_mistakes_are_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    _, line = fail([*QUICK, *words], capsys)
    assert message in line


@pytest.mark.parametrize(
    ("word", "meant"),
    [("exprt", "the command export"), ("--hepl", "--help"), ("hlep", "--help")],
)
def test_a_command_that_there_is_not(
    capsys: pytest.CaptureFixture[str], word: str, meant: str
) -> None:
    code, line = fail([word, "devices"], capsys)
    assert code == 2 and f"Did you mean {meant}?" in line


def csv(here: Path, text: str) -> list[str]:
    (here / "my.csv").write_text(text)
    return ["dataset=csv", "data-file=my.csv", "partition=natural", "num-users=0"]


def test_csv_mistakes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "\n".join(f"{u},{i % 2},{i},{i}.5" for u in "ab" for i in range(6))
    words = csv(here, f"user,label,p,q\n{rows}\n")
    assert run([*QUICK, *words, "model=linear", "strategy=fedavg", "num-nodes=1"], "") == 0
    _, line = fail([*QUICK, *words, "user-column=who"], capsys)
    assert "who" in line
    assert "user, label, p, q" in line
    csv(here, f"user,label,p,q\n{rows}\na,1,seven,2\n")
    _, line = fail([*QUICK, *words], capsys)
    assert "seven" in line
    assert "14" in line  # the line of the file


def test_a_model_without_a_linear_layer(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "mine.py").write_text(
        "from torch import nn\n"
        "def make(shape, classes):\n"
        "    return nn.Sequential(nn.Conv2d(1, classes, 8), nn.Flatten())\n"
    )
    monkeypatch.syspath_prepend(here)
    _, line = fail([*QUICK, "model=mine:make"], capsys)
    assert "linear" in line


def broken(kind: str) -> Any:
    """A `train` that goes wrong for user 3 alone, in one way."""
    original = FedAvgClient.train

    def train(self: FedAvgClient[NoKeys], got: Got, data: Examples) -> Sent:
        if "3" in self.users and kind == "raises":
            raise RuntimeError("the sensor is wet")
        sent = original(self, got, data)
        model = sent.mean["model"].copy()
        if kind == "nan" and "3" in self.users:
            model[self.users.index("3")] = np.nan
        if kind == "shape" and "3" in self.users:
            model = model[:, :-1]
        return replace(sent, mean={"model": model})

    return train


@pytest.mark.parametrize(
    ("kind", "cause"),
    [("raises", "the sensor is wet"), ("nan", "model is not finite"), ("shape", "wrong shape")],
)
@pytest.mark.parametrize("nodes", [1, 8])
def test_a_broken_client_is_dropped_and_the_rest_goes_on(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    cause: str,
    nodes: int,
) -> None:
    monkeypatch.setattr(FedAvgClient, "train", broken(kind))
    words = [*QUICK, "strategy=fedavg", "fraction-train=1.0", f"num-nodes={nodes}"]
    assert run([*words, "--json", "out.json"], "") == 0
    captured = capsys.readouterr()
    assert "user 3 is dropped" in captured.err
    assert cause in captured.err
    result = json.loads((here / "out.json").read_text())["results"][0]
    assert result["dropped"] == {"3": 2}
    assert result["users"] == 8
    assert "2 dropped replies: 3 (2)" in captured.out  # the table names it too
    fail([*words, "min-users=8"], capsys)


def test_slow_clients_are_late(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one is 8 s late; by the test's clock, all others need no time at all."""
    clock, original = stopped(monkeypatch), FedAvgClient.train

    def train(self: FedAvgClient[NoKeys], *arguments: Any) -> Any:
        clock.sleep(8 if "7" in self.users else 0)
        return original(self, *arguments)

    monkeypatch.setattr(FedAvgClient, "train", train)
    words = [*QUICK, "strategy=fedavg", "num-nodes=8", "fraction-train=1.0", "round-timeout=7"]
    assert run(words, "") == 0
    dropped = [line for line in capsys.readouterr().err.splitlines() if "is dropped" in line]
    assert len(dropped) == 2  # in each round
    assert all("user 7 is dropped: no reply in time" in line for line in dropped)


def test_when_every_client_fails_so_does_the_run(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(self: FedRepClient, *arguments: Any) -> Any:
        raise RuntimeError("all is lost")

    monkeypatch.setattr(FedRepClient, "train", train)
    code, line = fail([*QUICK, "strategy=fedrep"], capsys)
    assert code == 1
    assert "round 1: 0 usable replies" in line
    assert "all is lost" in line


def test_folders_that_cannot_be_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "file").write_text("")
    _, line = fail([*QUICK, "run-dir=file/runs"], capsys)
    assert "file/runs" in line
    _, line = fail([*QUICK, "cache-dir=file/cache"], capsys)
    assert "cache-dir" in line


@pytest.mark.parametrize("nodes", [1, 4])
def test_states_for_which_there_is_no_space_end_the_run(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    """To drop their users would give other numbers, and an exit code of 0."""
    words = [*QUICK, "strategy=fedrep,local", "num-rounds=4", f"num-nodes={nodes}"]
    assert run([*words, "--json", "whole.json"], "") == 0
    real = Database.save

    def full(self: Database, version: int, states: Any) -> None:
        if version == 3:
            connection = self._open()
            assert connection is not None
            connection.execute("PRAGMA max_page_count = 1")
            states = [replace(state, others=frozenset(range(99))) for state in states] * 99
        real(self, version, states)

    monkeypatch.setattr(Database, "save", full)
    capsys.readouterr()
    assert run(words, "") == 1
    err = capsys.readouterr().err
    line = next(line for line in err.splitlines() if line.startswith("corsage: "))
    assert "database or disk is full" in line and "dropped" not in err
    folder = err.split("--resume ")[1].split()[0]
    monkeypatch.setattr(Database, "save", real)
    assert run(["--resume", folder, "--json", "resumed.json"], "") == 0
    whole, resumed = (json.loads((here / f"{n}.json").read_text()) for n in ("whole", "resumed"))
    for one, other in zip(whole["results"], resumed["results"], strict=True):
        assert all(one[key] == other[key] for key in ("per_user", "curve", "bytes_up", "dropped"))


def test_a_damaged_file_of_states_ends_its_strategy(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*QUICK, "strategy=fedrep,local", "num-rounds=2"]
    assert run(words, "") == 0
    (folder,) = (here / "runs").iterdir()
    (file,) = (folder / "fedrep" / "users").glob("*.sqlite")
    file.write_bytes(b"garbage" * 900)
    capsys.readouterr()
    assert run(["--resume", str(folder), "num-rounds=3"], "") == 1
    err = capsys.readouterr().err
    assert "damaged (file is not a database). Put a copy of it back" in err
    assert "Traceback" not in err
    assert len((folder / "local" / "metrics.jsonl").read_text().splitlines()) == 3


def test_a_full_disk_ends_the_run_and_it_can_go_on(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full from the third checkpoint on; what was written before is whole."""
    from corsage.app.run import checkpoint

    words = [*QUICK, "strategy=fedrep", "num-rounds=5"]
    assert run([*words, "--json", "whole.json"], "") == 0
    real, count = checkpoint.write_checkpoint, [0]

    def full(path: Path, *arguments: Any) -> None:
        count[0] += 1
        if count[0] >= 3:
            raise OSError(28, os.strerror(28), str(path))
        real(path, *arguments)

    monkeypatch.setattr(checkpoint, "write_checkpoint", full)
    capsys.readouterr()
    code = run(words, "")
    err = capsys.readouterr().err
    assert code == 1
    assert "No space left on device" in err
    folder = err.split("--resume ")[1].split()[0]
    monkeypatch.setattr(checkpoint, "write_checkpoint", real)
    assert run(["--resume", folder, "--json", "resumed.json"], "") == 0
    whole, resumed = (
        json.loads((here / f"{name}.json").read_text())["results"][0]
        for name in ("whole", "resumed")
    )
    assert whole["per_user"] == resumed["per_user"]
    assert whole["bytes_up"] == resumed["bytes_up"]
    assert whole["curve"] == resumed["curve"]


def test_resume_under_another_config_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*QUICK, "strategy=local"], "") == 0
    folder = next((here / "runs").iterdir())
    _, line = fail(["--resume", str(folder), "lr=0.5"], capsys)
    assert "lr was 0.01, now 0.5" in line
    (folder / "local" / "result.json").unlink()
    for checkpoint in (folder / "local").glob("checkpoint-*"):
        checkpoint.write_bytes(checkpoint.read_bytes()[:-3])
    _, line = fail(["--resume", str(folder)], capsys)
    assert "damaged" in line
    assert "--from-round 0" in line


@pytest.mark.parametrize(
    "error", [MemoryError(), ImportError("x.so: failed to map segment from shared object")]
)
def test_a_process_without_memory_ends_with_a_line(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        raise error

    assert exit_code(work) == 1
    said = capsys.readouterr().err
    assert "no memory left: give it more" in said and said.count("\n") == 1
    error = RuntimeError("a defect")
    with pytest.raises(RuntimeError):
        exit_code(work)
