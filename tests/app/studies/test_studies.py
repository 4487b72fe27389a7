"""Studies from the command line, from Python, resumed, killed and beside others."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import corsage
from corsage.app import cell
from corsage.app.command import run
from corsage.app.studies import workers
from corsage.app.studies.means_table import latex, tabular
from corsage.app.studies.over_seeds import StudyRow
from corsage.app.studies.page import curve, every_run, interval
from corsage.app.studies.workers import Ended, Job
from corsage.core.errors import ConfigError, CorsageError, ModelError
from corsage.core.measures import ACCURACY
from tests.support.html import Page
from tests.support.reports import result_of

SMALL = [
    "num-users=6", "num-rounds=2", "hidden=8", "strategy=fedavg,local", "fine-tune-epochs=0",
    "evaluate-every=5", "fraction-train=0.5",
]  # fmt: skip


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs of studies are done in this process; the names of those that were."""
    names: list[str] = []

    def play(jobs: list[Job], at_once: int, told: Callable[[Ended], None]) -> list[Ended]:
        ended = []
        for job in jobs:
            names.append(job.name)
            code = 0
            try:
                cell.play(*job.arguments)
            except CorsageError as error:
                code = 1
                job.log.parent.mkdir(parents=True, exist_ok=True)
                job.log.write_text(f"corsage: {error}\n")
            ended.append(Ended(job, code, 0.1))
            told(ended[-1])
        return ended

    monkeypatch.setattr(workers, "play", play)
    return names


def folder_in(parent: Path) -> Path:
    (found,) = parent.iterdir()
    return found


def stored(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "study.json").read_text())
    return found


def test_several_seeds_make_a_study(
    tmp_path: Path, here: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.json"
    words = [*SMALL, "seed=0,1", f"run-dir={tmp_path / 'runs'}", f"--json={target}"]
    assert run(words, "") == 0
    out = capsys.readouterr().out
    assert "± sd over seeds" in out and "over users" in out and "Study folder:" in out
    folder = folder_in(tmp_path / "runs")
    assert here == ["seed=0", "seed=1"]
    assert sorted(p.name for p in folder.iterdir() if not p.name.startswith(".")) == [
        "report.html", "runs", "study.csv", "study.json", "table.tex",
    ]  # fmt: skip
    rows = stored(folder)["rows"]
    assert [row["strategy"] for row in rows] == ["fedavg", "local"]
    summary = json.loads((folder / "runs/seed=1/summary.json").read_text())["results"]
    assert rows[1]["means"][1] == summary[1]["accuracy"]["mean"]
    assert json.loads(target.read_text())["rows"] == rows
    assert len((folder / "study.csv").read_text().splitlines()) == 5
    more_of_it(folder, here, capsys)


def more_of_it(folder: Path, here: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """What is done is not done again; more seeds and more rounds are."""
    before = stored(folder)["rows"][0]["means"]
    here.clear()
    assert run(["--resume", str(folder)], "") == 0 and not here
    assert run(["--resume", str(folder), "seed=0,1,2"], "") == 0
    assert here == ["seed=2"] and stored(folder)["rows"][0]["means"][:2] == before
    here.clear()
    assert run(["--resume", str(folder), "num-rounds=3"], "") == 0
    assert len(here) == 3
    summary = json.loads((folder / "runs/seed=2/summary.json").read_text())
    assert summary["results"][0]["rounds"] == 3
    assert run(["--resume", str(folder), "lr=0.5"], "") == 1
    assert "cannot be resumed with lr=0.5" in capsys.readouterr().err


def test_the_page_of_a_sweep(
    tmp_path: Path, here: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", *SMALL, "seed=0,1", "lr=0.01,0.1", f"run-dir={tmp_path}"]
    assert run(words, "") == 0
    folder = folder_in(tmp_path)
    text = (folder / "report.html").read_text()
    page = Page()
    page.feed(text)
    page.close()
    assert "compared on the users&#x27; test data" in text and text.count("<title>seed ") == 8
    assert "lr=0.01|0.1" in text and str(tmp_path) not in text
    assert [row["settings"] for row in stored(folder)["rows"]][::2] == [
        {"lr": "0.01"},
        {"lr": "0.1"},
    ]
    capsys.readouterr()
    beside_each_other(folder, capsys)


def beside_each_other(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs of a study are runs; a comparison of them finds what was varied."""
    paths = [str(path) for path in sorted((study / "runs").iterdir()) if path.is_dir()]
    assert run(["compare", *paths], "") == 0
    alone = capsys.readouterr().out
    assert run(["compare", str(study)], "") == 0
    table = capsys.readouterr().out
    assert [line.split()[:2] for line in table.splitlines()[2:7]] == [
        line.split()[:2] for line in alone.splitlines()[2:7]
    ]
    assert re.search(r"^fedavg +0\.1 ", table, re.MULTILINE)
    assert run(["compare", paths[0], paths[0]], "") == 0
    assert run(["compare", str(study / "no")], "") == 2
    assert "no such folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["seed=0,x"], "seed=x: not a whole number"),
        (["seed=0,1", "dataset=csv", "data-file=/no.csv", "label-column=y"], "/no.csv"),
        (["sweep", "seed=1"], "no key has several values"),
        (["seed=0,1", "strategy=nope"], "no such strategy"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_one_line_and_no_folder(
    tmp_path: Path, here: list[str], capsys: pytest.CaptureFixture[str], words: list[str], part: str
) -> None:
    assert run([*words, f"run-dir={tmp_path / 'runs'}"], "") == 2
    said = capsys.readouterr().err
    assert part in said.splitlines()[-1] and "--resume" not in said
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


def test_a_damaged_study_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study.json").write_text("{")
    assert run(["--resume", str(tmp_path)], "") == 1
    assert "study.json is damaged" in capsys.readouterr().err


def test_from_python(tmp_path: Path, here: list[str]) -> None:
    keys: dict[str, Any] = {"num_users": 6, "num_rounds": 1, "hidden": "8", "fine_tune_epochs": 0}
    found = corsage.study(["fedavg", "local"], seed=range(2), run_dir=str(tmp_path), **keys)
    assert list(found) == ["fedavg", "local"] and found["local"].seeds == ["0", "1"]
    assert found["local"].sd is not None and "local" in str(found) and not found.missing
    assert {record["strategy"] for record in found.records()} == {"fedavg", "local"}
    lines = found.table.to_latex().splitlines()
    more = lines[2].count("&")
    assert found.table == str(found) and lines[0] == r"\begin{tabular}{l" + "r" * more + "}"
    assert more > 5 and [line.count("&") for line in lines if "&" in line] == [more] * 3
    assert r"accuracy \% $\pm$ sd over seeds" in lines[2] and r"$\pm$" in lines[4]
    assert (tmp_path / next(tmp_path.iterdir()) / "table.tex").read_text() == found.table.to_latex()


def test_names_and_the_best_row_as_latex() -> None:
    assert latex(r"a_b & 5% \ {x}^~") == (
        r"a\_b \& 5\% \textbackslash{} \{x\}\textasciicircum{}\textasciitilde{}"
    )
    text = tabular(["row", "mean"], [["fed_rep", "1"], ["local", "\N{MINUS SIGN}2"]], [False, True])
    assert r"fed\_rep & 1 \\" in text and r"\textbf{local} & \textbf{$-$2} \\" in text


def test_curves_of_a_study_are_means_over_seeds_with_their_deviation() -> None:
    """Of rounds that every seed evaluated; with rows far below signs are on page and paper."""
    curves = np.array([[0.2, 0.4, 0.7], [0.4, 0.5, 0.9], [0.3, 0.6, 0.8]])
    by_seed = {
        str(seed): {
            **result_of("fedrep", ["a", "b"], np.array([0.5, 0.5]), ACCURACY),
            "rounds": 30, "curve": [[5, 0.0]] * (not seed) + [*zip([10, 20, 30], own, strict=True)],
        }
        for seed, own in enumerate(curves.tolist())
    }  # fmt: skip
    row = StudyRow("fedrep", {}, by_seed, "")
    found = curve(row, "round")
    assert found and list(found.x) == [10, 20, 30]
    np.testing.assert_allclose(found.y, 100 * curves.mean(0))
    np.testing.assert_allclose(found.high, 100 * (curves.mean(0) + curves.std(0, ddof=1)))
    np.testing.assert_allclose(found.low, 100 * (curves.mean(0) - curves.std(0, ddof=1)))
    sent = curve(row, "bytes")
    assert sent and list(sent.x) == [20_000, 40_000, 60_000]
    dots = every_run([row, StudyRow("local", {}, {"0": by_seed["0"]}, "")], ["fedrep", "local"])
    assert [len(strip.values) for strip in dots.strips] == [3, 1]
    span = interval(row)
    assert span and dots.strips[0].low == pytest.approx(100 * span.low)


def test_another_methods_key_runs_a_method_once(
    tmp_path: Path, here: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """One table; the work of a run with fewer methods is that of the whole comparison."""
    words = [*SMALL, "strategy=fedrep,ditto", "ditto-lambda=0.1,1", f"run-dir={tmp_path}"]
    assert run(words, "") == 0
    folder, out = folder_in(tmp_path), capsys.readouterr().out
    assert here == ["ditto-lambda=0.1", "ditto-lambda=1"]
    rows = stored(folder)["rows"]
    assert [(row["strategy"], row["settings"]) for row in rows] == [
        ("fedrep", {}), ("ditto", {"ditto-lambda": "0.1"}), ("ditto", {"ditto-lambda": "1"}),
    ]  # fmt: skip
    lines = (folder / "study.csv").read_text().splitlines()
    steps = {
        float(line.split(",")[lines[0].split(",").index("gradient_steps")]) for line in lines[1:]
    }
    assert "samples" not in out.splitlines()[1]  # of equal users the two means are one
    assert len(lines) == 4 and max(steps) - min(steps) < 1  # whole steps of each part
    assert "Work differs" not in out
    here.clear()
    assert run(["--resume", str(folder)], "") == 0 and not here
    assert run(["compare", *map(str, (folder / "runs").glob("*=*[0-9]"))], "") == 0
    assert "Work differs" not in capsys.readouterr().out


def test_of_unequal_users_the_mean_over_samples_has_a_column(
    here: list[str], tmp_path: Path
) -> None:
    keys: dict[str, Any] = {"num_users": 6, "num_rounds": 1, "hidden": "8", "alpha": 0.1}
    keys |= {"partition": "dirichlet-by-class", "run_dir": str(tmp_path)}
    found = corsage.study("local", seed=[0, 1], **keys)
    assert "samples" in found.table.splitlines()[1]
    assert f"{100 * found['local'].average('over_samples'):.1f}" in found.table


def test_compare_says_which_key_makes_work_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """fedavg alone does one epoch a round, beside fedrep eleven."""
    for name in ("fedavg", "fedrep,fedavg"):
        assert run([*SMALL, f"strategy={name}", f"run-dir={tmp_path / name}"], "") == 0
    paths = [str(folder_in(tmp_path / name)) for name in ("fedavg", "fedrep,fedavg")]
    assert run(["compare", *paths], "") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Work differs between the runs (work-epochs=1, 11): fedavg" in out
    assert "work-epochs=11 makes it equal" in out


@pytest.mark.slow  # real processes: 15 s of CPU
def test_a_study_that_is_killed_leaves_nobody_at_work_and_is_finished_later(tmp_path: Path) -> None:
    words = [*SMALL, "num-rounds=60", "seed=0,1,2", "study-workers=2", f"run-dir={tmp_path}"]
    script = str(Path(corsage.__file__).with_name("run_simulation.py"))
    process = subprocess.Popen([sys.executable, script, *words], stderr=subprocess.DEVNULL)
    until(lambda: len(list(tmp_path.glob("*/runs/*/fedavg/checkpoint-*"))) > 1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    folder = folder_in(tmp_path)
    until(lambda: not at_work(folder))
    assert run(["--resume", str(folder)], "") == 0
    alone = tmp_path / "alone"
    assert run([*SMALL, "num-rounds=60", "seed=1", f"run-dir={alone}"], "") == 0
    whole = json.loads((folder_in(alone) / "summary.json").read_text())["results"]
    assert [row["means"][1] for row in stored(folder)["rows"]] == [
        found["accuracy"]["mean"] for found in whole
    ]


def at_work(folder: Path) -> list[int]:
    """The processes that a study's runs say are at work on them, and that are there."""
    found = []
    for lock in folder.glob("runs/*/lock.json"):
        pid = int(json.loads(lock.read_text())["pid"])
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            continue
        found.append(pid)
    return found


def until(true: Callable[[], bool]) -> None:
    """Wait for something that is sure to come."""
    for _ in range(6000):
        if true():
            return
        time.sleep(0.05)
    pytest.fail("it never came")


def own_users(number: int = 4) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    return [(rng.random((12, 5), np.float32), rng.integers(0, 3, 12)) for _ in range(number)]


def test_own_data_and_an_own_module_are_what_simulate_makes_of_each_seed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    net, users = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), own_users()
    keys: dict[str, Any] = {"num_rounds": 2, "fraction_train": 1.0}
    study = corsage.study("fedrep,local", users, model=net, seed=[0, 1], lr=[0.01, 0.5], **keys)
    assert capsys.readouterr().err.count(": done, ") == 4
    assert repr(study) == study.table and "fedrep" in study.table and study.folder is None
    for lr in ("0.01", "0.5"):
        for name in ("fedrep", "local"):
            alone = [
                corsage.simulate(
                    "fedrep,local",
                    users,
                    model=net,
                    seed=seed,
                    lr=float(lr),
                    progress=False,
                    **keys,
                )[name].score.mean
                for seed in (0, 1)
            ]
            assert study[f"{name} lr={lr}"].means == alone


def test_what_a_study_of_own_data_cannot_use_is_one_line() -> None:
    with pytest.raises(ModelError, match=r"data of shape \(3, 5\)"):
        corsage.study("local", own_users(), model=nn.Linear(7, 3), seed=[0, 1])
    with pytest.raises(ConfigError, match="resume"):
        corsage.study("local", own_users(), seed=[0, 1], resume="there")
    with pytest.raises(ConfigError, match="local is no name"):
        corsage.study([corsage.Local(num_users=4)], seed=[0, 1])  # type: ignore[list-item]


@pytest.mark.slow  # real processes: 8 s of CPU
def test_a_worker_that_dies_is_said_and_another_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while it has nothing to do, and within a job; what a job returns comes back."""
    begun: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def popen(*words: Any, **more: Any) -> subprocess.Popen[bytes]:
        begun.append(real(*words, **more))
        return begun[-1]

    monkeypatch.setattr(workers.subprocess, "Popen", popen)

    def job(name: str, function: str, *arguments: Any) -> Job:
        return Job(name, arguments, tmp_path / f"{name}.log", "core.clock", function)

    def told(ended: Ended) -> list[Job]:
        if ended.job.name == "first":
            begun[0].kill()
            begun[0].wait()
        return [job("last", "is_there", os.getpid())] if ended.job.name == "third" else []

    jobs = [job(name, "is_there", os.getpid()) for name in ("first", "second")]
    ended = workers.play([*jobs, job("third", "no_such")], 1, told)
    assert [one.job.name for one in ended] == ["first", "second", "third", "last"]
    assert [one.answer for one in (ended[0], ended[3])] == [True, True]
    assert ended[2].code and ended[3].code == 0 and len(begun) in (2, 3)
