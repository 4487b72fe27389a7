"""What cannot be used, wherever it turns up: one line, exit code 2, no run folder, no --resume."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from flwr.app import Context, RecordDict

from corsage import FedRep, fit, simulate
from corsage.app import server_app
from corsage.app.client_app import app as client_app
from corsage.app.command import run
from corsage.app.local_grid import LocalGrid
from corsage.app.run import run_folder
from corsage.core.configuration.config import Config
from corsage.core.errors import UNUSABLE, CorsageError, StorageError

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
    "not convex": ([*DIGITS, "model=mlp", "strategy=fedavg,mixed-model"], "needs model=linear"),
    "not convex either": ([*MLP, "strategy=local,convex-clustering"], "set model=linear"),
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
    "no run": (["--resume", "nowhere"], "nowhere: there is no such folder"),
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


MISTAKES = {
    "strategy=fedrep ditto": "commas between them: strategy=fedrep,ditto",
    "strategy=fedrep|ditto": "Did you mean strategy=fedrep,ditto?",
    "strategy=FedRep": "Did you mean fedrep?",
    "strategy=": "strategy=: name at least one",
    "strategy=fedrep,fedrep": "fedrep is named twice",
    "strategy=mine:Method": "given as an object, from Python: simulate([Mine()])",
    "strategy=mine.py": "given as an object, from Python: simulate([Mine()])",
    "strategy=auto,fedavg": "strategy=auto: it stands alone",
    "strateg=fedrep": "Did you mean strategy?",
    "fedrep": "Did you mean strategy=fedrep?",
    "dataset=cvs": "dataset=cvs: not possible. Did you mean csv?",
    "my.csv": "Did you mean dataset=csv data-file=my.csv?",
    "--num-rounds|3": "Did you mean num-rounds=3?",
    "num-rounds|3": "Did you mean num-rounds=3?",
    "num-rounds:3": "Did you mean num-rounds=3?",
    "lr|=|0.1": "Did you mean lr=0.1?",
    "num_rounds=3": "Did you mean num-rounds?",
    "num-rounds=three": "num-rounds=three: not a whole number",
    "num-rounds=1.5": "num-rounds=1.5: not a whole number",
    "num-rounds=0": "num-rounds=0: must be at least 1",
    "lr=abc": "lr=abc: not a number",
    "lr=-1": "lr=-1.0: must be at least 0",
    "fraction-train=50%": "fraction-train=50%: not a number",
    "fraction-train=2": "must be at most 1",
    "partition=dirichelt": "Did you mean dirichlet?",
    "measures=acuracy": "Did you mean accuracy?",
    "optimizer=Adam": "Did you mean adam?",
    "hidden=abc|model=mlp": "hidden=abc: not sizes of layers",
    "test-fraction=0": "nothing is held out, so that fedrep",
    "num-users=5000": "set num-users to at most 898",
    "data-file=header.csv": "header.csv: no rows below the header",
    "dataset=csv": "needs data-file=FILE.csv",
    "data-file=my.csv|user-column=usr|num-users=0": "no column 'usr' in the header",
    "data-file=my.csv|label-column=lable|num-users=0": "no column 'lable' in the header",
    "data-file=my.csv|num-users=50": "set num-users=0 to take all users",
    "data-file=my.csv|labels=number": "Did you mean numbers?",
    "new-users=2": "must be at most 0.9",
    "no.toml": "no.toml: cannot be read",
    "log-to=wandbb": "Did you mean wandb?",
    "runn": "Did you mean the command run?",
    "--resume": "--resume: needs a folder",
    "report|/nowhere": "/nowhere: there is no such folder",
    "report|.": "no config.json in it: no run has begun there",
    "compare|/nowhere": "/nowhere: there is no such folder",
    "predict|/nowhere|my.csv": "/nowhere: there is no such folder",
    "sweep|lr=1": "no key has several values",
}
"""What a newcomer types, `|` for a blank between words, and what is said."""


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_newcomers_mistake_ends_in_one_right_line(
    here: Path, capsys: pytest.CaptureFixture[str], typed: str
) -> None:
    (here / "header.csv").write_text("user,label,p\n")
    kind = ["dataset=csv"] * ("data-file" in typed)
    assert run([*typed.split("|"), *kind], "") == 2
    *before, line = capsys.readouterr().err.splitlines()
    assert line.startswith("corsage: ") and MISTAKES[typed] in line
    assert len(before) <= 1 and not any("Traceback" in one or "corsage:" in one for one in before)


def test_steps_of_no_length_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    simulate("fedavg", lr=0.0, num_users=4, num_rounds=1)
    said = capsys.readouterr().err
    assert "lr=0: no step changes anything; set it above 0" in said and "more rounds" not in said


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda frame: fit(frame, user="user", label="label", clustr="p"), "Did you mean cluster?"),
        (lambda frame: fit(frame, usr="user", label="label"), "Did you mean user?"),
        (lambda frame: fit(frame, user="nobody", label="label"), "no column 'nobody'"),
        (lambda frame: fit("absent.csv", user="user"), "absent.csv: cannot be read"),
        (lambda frame: simulate(3), "3 is no strategy; give a name"),
        (lambda frame: simulate(None), "None is no strategy; give a name"),
        (lambda frame: simulate(FedRep), "give a name, or one made: FedRep()"),
        (lambda frame: simulate("fedavg", num_round=1), "Did you mean num-rounds?"),
        (lambda frame: simulate("fedavg", lr=[0.1, 0.2]), "Several values are for a study"),
        (lambda frame: simulate("fedavg", 5), "int: give (x, y)"),
        (lambda frame: simulate("fedavg", x=[["a"]] * 9, y=[0] * 9), "expected numbers"),
        (lambda frame: simulate("fedavg", x=np.eye(9), y=[np.nan] * 9), "not a finite"),
        (lambda frame: simulate("fedavg", x=np.eye(9), y=[0] * 8), "9 samples and 8 labels"),
    ],
)
def test_a_newcomers_mistake_in_python_is_one_line(
    call: Callable[[Any], object], said: str
) -> None:
    frame = {"user": list("abc") * 6, "label": [0, 1] * 9, "p": list(range(18))}
    with pytest.raises(CorsageError, match=re.escape(said)) as error:
        call(pandas.DataFrame(frame))
    assert "\n" not in str(error.value)


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
