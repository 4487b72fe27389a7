"""Runs that go on after all kinds of damage: the same numbers, or one line that says what to do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from corsage.app.command import run
from corsage.app.run.checkpoint import found
from corsage.app.run.loaded import load
from corsage.app.run.run_folder import RunFolder
from corsage.benchmarks.chaos.damage import damage
from corsage.core.configuration.config import Config
from corsage.core.errors import CheckpointError, DataError, RoundFailed
from corsage.strategies.fedavg import FedAvg
from tests.support.killing import SCRIPT

QUICK = ["num-users=6", "num-rounds=6", "head-epochs=1", "hidden=4", "fraction-train=0.5"]
QUICK += ["fine-tune-epochs=1"]
TWO = [*QUICK, "strategy=fedrep,fedavg"]


def numbers(folder: Path) -> list[Any]:
    """The results of a run, without their time."""
    results = json.loads((folder / "summary.json").read_text())["results"]
    return [{key: value for key, value in r.items() if key != "seconds"} for r in results]


def only(folder: Path) -> Path:
    """The only run folder in a folder."""
    (one,) = folder.iterdir()
    return one


def line_of(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that says why a command failed."""
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("corsage: ")]
    return line


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two strategies that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    assert run([*TWO, f"run-dir={folder}"], "") == 0
    return only(folder)


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """The same run, at the moment before the second strategy's results were written."""
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    (folder / "fedavg" / "result.json").unlink()
    (folder / "summary.json").unlink()
    return folder


def test_a_page_that_is_made_again_says_the_same(whole: Path) -> None:
    before = (whole / "report.html").read_text()
    assert run(["report", str(whole)], "") == 0 and "Beyond noise" in before
    assert (whole / "report.html").read_text() == before


def test_three_checkpoints_are_kept(whole: Path) -> None:
    for name in ("fedrep", "fedavg"):
        assert [number for number, _ in found(whole / name)] == [4, 5, 6]


def test_as_many_as_are_asked_for(tmp_path: Path) -> None:
    words = [*QUICK, "strategy=fedavg", "checkpoint-every=2", "keep-checkpoints=2"]
    assert run([*words, f"run-dir={tmp_path}"], "") == 0
    assert [number for number, _ in found(only(tmp_path) / "fedavg")] == [4, 6]


def test_traffic_and_drops_are_the_same_after_a_resume(whole: Path, copy: Path) -> None:
    """The last evaluation is asked again, and counted once."""
    assert run(["--resume", str(copy)], "") == 0
    assert numbers(copy) == numbers(whole)


@pytest.mark.parametrize("damage", [lambda raw: raw[:-3], lambda raw: b"", lambda raw: b"\0" * 99])
def test_the_newest_sane_checkpoint_is_used_and_the_skipped_are_named(
    whole: Path, copy: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[bytes], bytes]
) -> None:
    for number in (5, 6):
        path = copy / "fedavg" / f"checkpoint-{number:06}"
        path.write_bytes(damage(path.read_bytes()))
    assert run(["--resume", str(copy)], "") == 0
    err = capsys.readouterr().err
    assert "checkpoint-000006 is skipped: " in err
    assert "checkpoint-000005 is skipped: " in err
    assert numbers(copy) == numbers(whole)
    assert [number for number, _ in found(copy / "fedavg")] == [4, 5, 6]


def test_with_no_sane_checkpoint_a_line_says_how_to_begin_anew(
    whole: Path, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _, path in found(copy / "fedavg"):
        path.write_bytes(b"x")
    assert run(["--resume", str(copy)], "") == 1
    captured = capsys.readouterr()
    assert "--from-round 0" in captured.err
    assert "fedrep" in captured.out  # the other one's row
    assert run(["--resume", str(copy), "--from-round", "0"], "") == 0
    assert numbers(copy) == numbers(whole)


@pytest.mark.parametrize("number", [0, 4, 5])
def test_a_run_goes_back_to_a_round(whole: Path, copy: Path, number: int) -> None:
    """Only of the strategy that is not done; of all if all are."""
    assert run(["--resume", str(copy), f"--from-round={number}"], "") == 0
    assert numbers(copy) == numbers(whole)
    (copy / "fedrep" / "model.safetensors").unlink()
    assert run(["--resume", str(copy), "--from-round", str(number)], "") == 0
    assert run(["--resume", str(copy), "--from-round", str(number)], "") == 0
    assert numbers(copy) == numbers(whole)
    rows = (copy / "fedrep" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["round"] for row in rows] == [1, 2, 3, 4, 5, 6]


def test_a_resumed_run_keeps_what_it_went_on_from(tmp_path: Path) -> None:
    """Until there are enough newer checkpoints: it may be killed, or asked to go back."""
    words = [*QUICK, "strategy=fedrep", "fraction-train=1", "num-rounds=4", "checkpoint-every=4"]
    assert run([*words, f"run-dir={tmp_path}"], "") == 0
    folder = only(tmp_path)
    assert run(["--resume", str(folder), "num-rounds=8"], "") == 0
    after = numbers(folder)
    assert run(["--resume", str(folder), "--from-round", "4"], "") == 0
    assert numbers(folder) == after


def test_a_round_that_is_not_kept_is_refused_with_those_that_are(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    assert run(["--resume", str(copy), "--from-round", "2"], "") == 2
    assert "from-round=2: of fedavg the rounds 0, 4, 5 and 6 are kept" in line_of(capsys)
    after = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    assert {path for path in after if after[path] != before.get(path)} <= {copy / ".lock"}
    assert run(["from-round=2"], "") == 2
    assert "--resume RUN_FOLDER" in line_of(capsys)


def test_more_rounds_continue_from_the_last_checkpoint(whole: Path, tmp_path: Path) -> None:
    folder, long = tmp_path / "copy", tmp_path / "long"
    shutil.copytree(whole, folder)
    assert run([*TWO, "num-rounds=9", f"run-dir={long}"], "") == 0
    stamp = (folder / "fedrep" / "checkpoint-000006").stat().st_mtime_ns
    assert run(["--resume", str(folder), "num-rounds=8"], "") == 0
    assert (folder / "fedrep" / "checkpoint-000006").stat().st_mtime_ns == stamp
    assert run(["--resume", str(folder), "num-rounds=9"], "") == 0
    assert numbers(folder) == numbers(only(long))
    assert run(["--resume", str(folder)], "") == 0  # it is a run of nine rounds now
    assert numbers(folder) == numbers(only(long))


def test_a_run_stops_where_validation_data_say_so_killed_or_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a loop over the curve of the run that goes on; and it is the run of so many rounds."""
    words = [*QUICK, "strategy=fedavg,fedrep", "lr=0.3", "validation=0.3", "evaluate-every=2"]
    folders = {}
    for name, more in {"whole": [], "stopped": ["stop-after=2"]}.items():
        assert run([*words, "num-rounds=24", *more, f"run-dir={tmp_path / name}"], "") == 0
        folders[name] = only(tmp_path / name)
    said, rows = capsys.readouterr().out, numbers(folders["stopped"])
    for one in (row for row in numbers(folders["whole"]) if "+" not in row["strategy"]):
        best, since, points = -1.0, 0, [p for p in one["curve"] if p[0] % 2 == 0]
        for number, value in points:
            best, since = (value, number) if value > best else (best, since)
            if number == since + 2 * 2:
                break
        (own,) = (row for row in rows if row["strategy"] == one["strategy"])
        assert own["rounds"] == number < 24
        assert own["curve"] == [p for p in points if p[0] <= number]
        assert f"{number}  no better on validation data since round {since};" in said
    place = tmp_path / "short"
    assert run([*words, f"num-rounds={number}", f"run-dir={place}"], "") == 0
    (short,) = (row for row in numbers(only(place)) if row["strategy"] == own["strategy"])
    same = ("per_user", "bytes_up", "bytes_down", "gradient_steps", "measures")
    assert {name: short[name] for name in same} == {name: own[name] for name in same}
    for gone in (*folders["stopped"].glob("fed*/result.json"), folders["stopped"] / "summary.json"):
        gone.unlink()
    (folders["stopped"] / "fedrep" / f"checkpoint-{number:06}").unlink()
    assert run(["--resume", str(folders["stopped"])], "") == 0
    assert numbers(folders["stopped"]) == rows


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["stop-after=3"], "there are none; set validation=0.2"),
        (["stop-after=3", "validation=0.2", "num-rounds=20"], "after round 20 at the earliest"),
    ],
)
def test_a_run_that_could_not_stop_early_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], part: str
) -> None:
    assert run([*QUICK, *words, f"run-dir={tmp_path}"], "") == 2
    assert part in line_of(capsys) and not [*tmp_path.iterdir()]


def test_fewer_rounds_than_are_done_are_refused(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--resume", str(copy), "num-rounds=5"], "") == 2
    assert "num-rounds=5: fedrep has done 6" in line_of(capsys)


def own(result: dict[str, Any]) -> dict[str, Any]:
    """A row without what it is compared with."""
    return {name: value for name, value in result.items() if name != "hurt"}


def trained(folder: Path) -> list[str]:
    """The strategies of a run, in the order of its rows."""
    return list(dict.fromkeys(r["strategy"].partition("+")[0] for r in numbers(folder)))


def test_other_strategies_may_be_asked_of_the_same_folder(whole: Path, tmp_path: Path) -> None:
    """With keys of their own; those of what has begun stay, and so do its files."""
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    words = ["--resume", str(folder)]
    assert run([*words, "strategy=fedrep,ditto", "ditto-lambda=0.5"], "") == 0
    assert trained(folder) == ["fedrep", "ditto"]
    assert run([*words, "strategy=ditto,fedavg,fedrep"], "") == 0
    assert trained(folder) == ["ditto", "fedavg", "fedrep"]
    assert own(numbers(folder)[5]) == own(numbers(whole)[0])
    alone = tmp_path / "alone"
    assert run([*QUICK, "strategy=ditto", "ditto-lambda=0.5", f"run-dir={alone}"], "") == 0
    assert own(numbers(only(alone))[0]) == own(numbers(folder)[0])


def test_on_other_data_nothing_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the same size and time; a line names whose they are. Untouched, it goes on."""
    rng = np.random.default_rng(0)
    lines = [f"u{i % 4},{x:.6f},{int(x > 0)}" for i, x in enumerate(rng.normal(size=80))]
    path, runs = tmp_path / "data.csv", tmp_path / "runs"
    path.write_text("\n".join(["user,x,label", *lines]))
    own = ["dataset=csv", f"data-file={path}", "model=linear", "num-rounds=2", "num-users=0"]
    assert run([*own, "strategy=fedavg,local", f"run-dir={runs}"], "") == 0
    folder = only(runs)
    was, raw = path.stat(), path.read_text()
    one = load(folder)["fedavg"]
    assert one.evaluate() == pytest.approx(one.per_user) and len(one.data) == 32
    digit = str(9 - int(lines[-1][-3]))
    path.write_text(raw.replace(lines[-1], lines[-1][:-3] + digit + lines[-1][-2:]))
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert path.stat().st_size == was.st_size
    with pytest.raises(DataError, match="the data are not those that the run was made of"):
        load(folder)["fedavg"].evaluate()
    (folder / "local" / "result.json").unlink()
    said = (folder / "config.json").read_text()
    for words in ([], ["strategy=fedavg,ditto"], ["num-rounds=3"]):
        capsys.readouterr()
        assert run(["--resume", str(folder), *words], "") == 2
        assert "data are not those that the run began with: user u3 is changed" in line_of(capsys)
    assert (folder / "config.json").read_text() == said  # nor were its keys taken over
    path.write_text(raw)
    assert run(["--resume", str(folder), "strategy=fedavg,local,ditto"], "") == 0
    marks = {row.data for row in load(folder).rows.values()}
    assert marks == {one.data}


def test_keys_of_what_has_begun_may_not_change(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    assert run(["--resume", str(folder), "strategy=fedavg", "head-epochs=7"], "") == 2
    assert "head-epochs was 1, now 7" in line_of(capsys)


@pytest.mark.parametrize("error", [RoundFailed("the sun went down."), ZeroDivisionError("oh")])
def test_one_failing_strategy_does_not_lose_the_comparison(
    whole: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    original = FedAvg.choose

    def choose(self: FedAvg, number: int, users: list[str]) -> list[str]:
        if number == 3:
            raise error
        return original(self, number, users)

    words = [*QUICK, "strategy=fedavg,fedrep", f"run-dir={tmp_path / 'runs'}"]
    monkeypatch.setattr(FedAvg, "choose", choose)
    assert run([*words, "--json", str(tmp_path / "out.json")], "") == 1
    captured = capsys.readouterr()
    (line,) = [x for x in captured.err.splitlines() if x.startswith("corsage: ")]
    assert line.startswith("corsage: 1 of 2 strategies failed: fedavg. fedavg: ")
    assert str(error) in line
    folder = only(tmp_path / "runs")
    assert f"--resume {folder}" in captured.err
    assert "fedavg failed: " in captured.out
    assert "fedrep" in captured.out
    summary = json.loads((tmp_path / "out.json").read_text())
    assert str(error) in summary["failed"]["fedavg"]
    assert str(error) in (folder / "report.html").read_text()
    known = [own(r) for r in numbers(whole) if r["strategy"].startswith("fedrep")]
    assert [own(r) for r in numbers(folder)] == known
    monkeypatch.setattr(FedAvg, "choose", original)
    assert run(["--resume", str(folder)], "") == 0
    assert sorted(numbers(folder), key=str) == sorted(numbers(whole), key=str)
    assert not (folder / "fedavg" / "failure.json").exists()
    assert "failed" not in (folder / "report.html").read_text().replace("failed:", "")


def test_what_ends_all_strategies_ends_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["strategy=fedavg,fedrep", "model=nowhere:factory", f"run-dir={tmp_path / 'runs'}"]
    assert run([*QUICK, *words], "") == 2
    assert "nowhere" in line_of(capsys)
    words = ["strategy=fedrep,lg-fedavg", "lg-fedavg-warmup-rounds=9", f"run-dir={tmp_path}/r"]
    assert run([*QUICK, *words], "") == 2
    assert "lg-fedavg-warmup-rounds=9" in line_of(capsys)
    assert not (tmp_path / "r").exists()  # nothing has run


def test_a_second_process_ends_at_once_with_the_holders_pid(
    copy: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config.parse({"resume": str(copy), **dict(word.split("=") for word in TWO)})
    with RunFolder.open(config):
        command = [sys.executable, str(SCRIPT), "--resume", str(copy)]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        assert found.returncode == 1
        assert f"process {os.getpid()} on " in found.stderr
        assert "Traceback" not in found.stderr
        with pytest.raises(CheckpointError, match="is at work on this run"):
            RunFolder.open(config)
    assert run(["--resume", str(copy)], "") == 0
    assert numbers(copy) == numbers(whole)


def test_a_lock_of_a_killed_process_is_none(copy: Path) -> None:
    (copy / "lock.json").write_text('{"pid": 1, "host": "elsewhere"}')
    assert run(["--resume", str(copy)], "") == 0
    assert not (copy / "lock.json").exists()


def test_temporary_files_of_a_killed_write_are_cleared(copy: Path) -> None:
    (copy / ".summary.json.0123456789ab").write_text("x")
    (copy / "fedavg" / ".checkpoint-000006.0123456789ab").write_text("x")
    (copy / ".mine").write_text("mine")
    assert run(["--resume", str(copy)], "") == 0
    assert [path.name for path in copy.rglob(".*")] == [".lock", ".mine"] or {
        path.name for path in copy.rglob(".*")
    } == {".lock", ".mine"}


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "zeros": lambda raw: b"\0" * len(raw),
    "zeros at the end": lambda raw: raw[:-40] + b"\0" * 40,
    "bad UTF-8": lambda raw: b"\xff\xfe\n" + raw,
    "a list": lambda raw: b"[]\n",
    "a text": lambda raw: b'"config"\n',
    "half of it": lambda raw: raw[: len(raw) // 2],
    "nothing": lambda raw: b"",
}


@pytest.mark.parametrize("name", ["config.json", "fedrep/result.json", "fedrep/metrics.jsonl"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_made_anew(whole: Path, copy: Path, name: str, damage: str) -> None:
    path = copy / name
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert run(["--resume", str(copy)], "") == 0
    assert numbers(copy) == numbers(whole)


def test_a_folder_that_is_none_is_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text('{"config": "a", "run": 3}')
    assert run(["--resume", str(tmp_path)], "") == 2
    assert "config.json is damaged, and no checkpoint is there" in line_of(capsys)
    assert run(["--resume", str(tmp_path / "absent")], "") == 2
    assert "there is no such folder" in line_of(capsys)
    assert not (tmp_path / "absent").exists()


@settings(
    max_examples=int(os.environ.get("FUZZ", "12")),
    deadline=None,
    phases=[Phase.generate],  # to shrink takes longer than to read
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.integers(0, 10**9))
def test_any_damage_leaves_the_numbers_or_one_line(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Files cut, zeroed, replaced or with changed bits: the same numbers, or a line says why."""
    random, folder = Random(seed), tmp_path_factory.mktemp("fuzz") / "run"
    shutil.copytree(whole, folder)
    (folder / "summary.json").unlink()
    done = [damage(folder, random) for _ in range(random.randint(1, 3))]
    resume = ["--resume", str(folder)]
    if run(resume, ""):  # then as the line says
        assert run([*resume, "--from-round", "0"], "") == 0, done
    assert numbers(folder) == numbers(whole), done


def test_a_run_killed_before_it_began_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--resume", str(tmp_path)], "") == 2
    assert "start a new run" in line_of(capsys)
