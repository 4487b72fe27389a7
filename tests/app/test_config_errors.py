"""What cannot be used, wherever it turns up: one line, exit code 2, no run folder, no --resume."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from corsage.app import server_app
from corsage.app.client_app import app as client_app
from corsage.app.command import run
from corsage.app.local_grid import LocalGrid
from corsage.app.run import run_folder
from corsage.core.configuration.config import Config
from corsage.core.errors import UNUSABLE, StorageError

QUICK = ["num-users=6", "num-rounds=1", "hidden=4", "head-epochs=1", "fine-tune-epochs=0"]
LINEAR = ["dataset=hierarchical", "num-users=0", "model=linear"]
DIGITS, MLP = ["dataset=digits"], ["dataset=moons", "model=mlp"]
RANDOM = ["mixed-random=intercept", "intercept=false"]
OWN = """
from torch import nn

def narrow(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(7, classes))

def broken(shape, classes):
    raise ValueError("no such thing")

def two(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
"""
CASES = {
    "a key": (["num-round=3"], "Did you mean num-rounds?"),
    "a value": (["lr=fast"], "lr=fast: not a number"),
    "a range": (["batch-size=0"], "must be at least 1"),
    "a choice": (["engine=rey"], "Did you mean ray?"),
    "a strategy": (["strategy=fedrap"], "Did you mean fedrep?"),
    "a file of keys": (["keys.toml"], "keys.toml: not valid TOML"),
    "no file": (["dataset=csv", "data-file=absent.csv"], "absent.csv: no such file"),
    "a bad file": (["dataset=csv", "data-file=bad.csv"], "line 2"),
    "no text": (["dataset=csv", "data-file=binary.csv"], "binary.csv"),
    "an empty file": (["dataset=csv", "data-file=empty.csv"], "empty.csv: empty"),
    "a folder": (["dataset=csv", "data-file=."], "."),
    "no array": (["dataset=npz", "data-file=bad.csv"], "bad.csv"),
    "too few": (["dataset=csv", "data-file=my.csv", "min-samples=99"], "min-samples=99"),
    "no data": (["dataset=mnist", "data-dir=nowhere"], "nowhere"),
    "a map": (["cluster-map=nowhere.json"], "cluster-map=nowhere.json"),
    "a model": (["model=resnet"], "no such model"),
    "a model's file": (["model=nowhere:net"], "cannot import nowhere"),
    "a narrow model": (["model=misfits:narrow"], "fails on data of shape"),
    "a broken model": (["model=misfits:broken"], "no such thing"),
    "too few outputs": (["model=misfits:two"], "it must return (3, 10)"),
    "a head": (["head=fc9"], "no such module"),
    "a loss": (["loss=logistic"], "is for two classes"),
    "no clusters": ([*DIGITS, "strategy=fedavg,fedrep-known"], "are in no known cluster"),
    "not convex": ([*DIGITS, "model=mlp", "strategy=fedavg,mixed-model"], "two classes so far"),
    "not convex either": ([*MLP, "strategy=local,convex-clustering"], "set model=linear"),
    "many classes": ([*DIGITS, "strategy=mixed-model"], "these are 10 classes: take fedrep"),
    "many outputs": ([*DIGITS, "strategy=local,convex-clustering"], "650 numbers a model: take"),
    "no examples for both": (["strategy=fedavg,mixed-model"], "such as dataset=hierarchical"),
    "known late": ([*DIGITS, "strategy=async-l2gd"], "have no known cluster"),
    "of the second one": ([*DIGITS, "strategy=local,async-l2gd"], "have no known cluster"),
    "a strength": ([*LINEAR, "strategy=local,mixed-model", "known-gamma=x.json"], "no such file"),
    "no intercept": ([*LINEAR, *RANDOM, "strategy=local,mixed-model"], "there is none to vary"),
    "no likelihood": ([*LINEAR, "strategy=local,async-l2gd", "ridge=1"], "set loss-scale=sum"),
    "a probability": ([*LINEAR, "strategy=local,async-l2gd", "known-p0=2"], "from 0 to below 1"),
    "a refresh": ([*LINEAR, "strategy=local,async-al2sgd", "al2sgd-rho=7"], "at most 1"),
    "no average": (["strategy=fedmtl", "robust=krum"], "not for strategy=fedmtl"),
    "too few for it": (
        ["strategy=fedavg,local", "robust=krum", "fraction-train=0.1"],
        "raise fraction-train",
    ),
    "no old users": (["new-cluster=x"], "0 of 6 users would be new"),
    "more clusters": (["dataset=ellipses", "num-clusters=9"], "dataset=ellipses has 3"),
    "more users": (["dataset=hierarchical", "num-users=99"], "set num-users=0"),
    "more nodes": (["num-nodes=9"], "more nodes than users"),
    "more replies": (["min-users=9"], "min-users=9: there are 6 users"),
    "a device": (["device=cuda:7"], "no such device"),
    "a folder for runs": (["run-dir=my.csv"], "run-dir=my.csv"),
    "a closed folder": (["run-dir=/proc/runs"], "run-dir=/proc/runs"),
    "a cache": (["cache-dir=my.csv"], "cache-dir"),
    "a folder for the summary": (["--json", "no/x.json"], "its folder does not exist"),
    "no run": (["--resume", "nowhere"], "not a run folder"),
    "another folder": (["--resume", "."], "not a run folder"),
    "no run to go back in": (["--from-round", "0"], "--resume RUN_FOLDER"),
    "no address": (["engine=ray", "ray-address=here", "num-nodes=2"], "no such address"),
    "nobody there": (["engine=ray", "ray-address=PORT", "num-nodes=2"], "nothing answers there"),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files that are good and bad."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    rows = "\n".join(f"{user},{i % 2},{i}" for user in "abc" for i in range(6))
    (tmp_path / "my.csv").write_text(f"user,label,p\n{rows}\n")
    (tmp_path / "bad.csv").write_text("user,label,p\na,1,\x1b[31m;\n")
    (tmp_path / "binary.csv").write_bytes(bytes(range(256)))
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "keys.toml").write_text("lr = = 1")
    (tmp_path / "misfits.py").write_text(OWN)
    return tmp_path


@pytest.fixture(scope="module")
def port() -> Iterator[str]:
    """A place on this machine where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("case", CASES)
def test_it_is_one_line_and_leaves_nothing(
    here: Path, port: str, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    words, said = CASES[case]
    before = {path.name for path in here.iterdir()}
    assert run([*QUICK, *(word.replace("PORT", port) for word in words)], "") == 2
    shown = capsys.readouterr()
    (line,) = [line for line in shown.err.splitlines() if said.replace("PORT", port) in line]
    assert line.startswith("corsage: ") and line.isprintable()
    assert "Traceback" not in shown.err and "--resume runs" not in shown.err
    assert not shown.out
    left = {path.name for path in here.iterdir()} - before - {"__pycache__"}
    assert not [path for name in left for path in (here / name).iterdir()], left


SERVED = ["a model", "known late", "a loss", "a folder for runs", "no average"]


@pytest.mark.parametrize("case", SERVED)
def test_a_server_leaves_nothing_either(
    here: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    """As `flwr run` calls it; there is no command line that looks at the keys first."""
    words, said = CASES[case]
    keys = Config.parse(dict(word.split("=", 1) for word in [*QUICK, *words])).flat()
    context = Context(1, 0, {}, RecordDict(), dict(keys))
    with pytest.raises(UNUSABLE, match=said):
        server_app.main(None, LocalGrid(client_app, 1), context)
    assert "can be finished" not in capsys.readouterr().err
    assert not (here / "runs").exists() or not [*(here / "runs").iterdir()]


def test_results_are_kept_whatever_becomes_of_the_others(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What only its first question shows ends one strategy; to go on would end so again."""
    (here / "few.json").write_text('{"0": 1}')
    strengths = ["known-gamma=1", "known-lambda=few.json"]
    assert run([*QUICK, *LINEAR, "strategy=local,async-l2gd", *strengths], "") == 1
    shown = capsys.readouterr()
    assert "async-l2gd failed: known-lambda=few.json" in shown.err and "--resume" not in shown.err
    (folder,) = (here / "runs").iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    assert [row["strategy"] for row in summary["results"]] == ["local"]
    assert np.isfinite(summary["results"][0]["rmse"]["mean"])


def test_what_is_resumed_is_never_taken_away(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*QUICK, "strategy=local"], "") == 0
    (folder,) = (here / "runs").iterdir()
    assert run(["--resume", str(folder), "strategy=local,async-l2gd"], "") == 1
    assert run(["--resume", str(folder), "lr=0.5"], "") == 2
    assert (folder / "local" / "result.json").exists()


def test_a_full_disk_is_no_mistake_in_a_key(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **named: object) -> None:
        error = OSError(28, "No space left on device")
        raise StorageError(str(error)) from error

    monkeypatch.setattr(run_folder, "guarded", full)
    assert run(QUICK, "") == 1
    assert "No space left on device" in capsys.readouterr().err
