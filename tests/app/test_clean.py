"""`corsage clean`: what is old goes, what is in use or not ours stays."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from corsage import simulate
from corsage.app.run.clean import run
from corsage.app.run.status import RunLock
from corsage.app.states.shelf import Kept
from corsage.app.states.state_files import Files
from corsage.core.files import sealed
from corsage.datasets.dealing.data_cache import prepared_folders


def stamp(folder: Path, when: float) -> None:
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (when, when))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Five runs, the last one used last; 1 is unfinished; and things that are not ours."""
    folder = tmp_path / "runs"
    for number in range(5):
        one = folder / f"run-{number}"
        (one / "fedrep" / "users").mkdir(parents=True)
        (one / "local").mkdir()
        content = {"run": f"{number:012x}", "config": {"strategy": "fedrep,local"}}
        (one / "config.json").write_text(sealed(content))
        (one / "fedrep" / "users" / "x.sqlite").write_text("states")
        for name in ("fedrep", "local")[: 1 if number == 1 else 2]:
            (one / name / "result.json").write_text("{}")
        stamp(one, 1000 + number)
    (folder / "letters").mkdir()
    (folder / "letters" / "config.json").write_text(json.dumps({"mine": 1}))
    (folder / "link").symlink_to(folder / "run-0")
    return folder


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"letters", "link"}


def test_old_runs_go_and_what_could_be_resumed_stays(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(runs.rglob("*"))
    assert run([str(runs), "--keep", "2", "--dry-run"]) == 0
    assert sorted(runs.rglob("*")) == before
    said = capsys.readouterr().out
    assert said.count("would be removed") == 2 and said.count(": kept") == 3
    assert run([str(runs), "--keep=2"]) == 0
    assert left(runs) == {"run-1", "run-3", "run-4"}
    assert "run-1 (unfinished" in capsys.readouterr().out
    assert run([str(runs), "--keep", "0", "--unfinished"]) == 0
    assert left(runs) == set()
    assert {path.name for path in runs.iterdir()} == {"letters", "link"}


def test_a_run_that_is_at_work_stays(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = RunLock(runs / "run-0")
    lock.take()
    try:
        for more in (["--dry-run"], []):
            assert run([str(runs), "--keep", "0", *more]) == 0
            assert f"kept: process {os.getpid()} on" in capsys.readouterr().out
    finally:
        lock.release()
    assert left(runs) == {"run-0", "run-1"}
    assert (runs / "run-0" / "fedrep" / "users" / "x.sqlite").exists()


def test_old_states_of_a_device_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    for number in range(4):
        files = Files(tmp_path, f"fedrep-{number:012x}")
        files.save(1, [Kept("u", {"a": np.zeros(9)})])
        stamp(files.folder, 1000 + number)
    (tmp_path / "fedrep-000000000000" / "u" / "mine.txt").write_text("dear")
    assert run([str(tmp_path), "--keep", "1", "--dry-run"]) == 0
    assert len(list(tmp_path.iterdir())) == 5
    assert run([str(tmp_path), "--keep", "1"]) == 0
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {
        "letter.txt",
        "fedrep-000000000000/u/mine.txt",
        "fedrep-000000000003/.experiment",
        "fedrep-000000000003/u/1.safetensors",
    }


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "name one folder"),
        (["nowhere"], "name one folder"),
        (["a", "b"], "name one folder"),
        ([".", "--keep", "-1"], "--keep -1: must be"),
        ([".", "--keep"], "--keep : must be"),
        ([".", "--kep=1"], "--kep=1: unknown"),
        (["."], "no runs of Corsage in it"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letter.txt").write_text("dear")
    assert run(words) == 2
    err = capsys.readouterr().err
    assert line in err and err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_prepared_data_go_but_those_read_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    kept = simulate("exact-local", cache_dir=str(cache), dataset="ellipses", progress=False)
    (first,) = prepared_folders(cache)
    for file in first.iterdir():
        os.utime(file, (1, 1))
    simulate("exact-local", cache_dir=str(cache), dataset="moons", progress=False)
    (cache / "mine").mkdir()
    assert run([str(cache), "--keep", "1", "--dry-run"]) == 0
    assert "would be removed" in capsys.readouterr().out and first.exists()
    assert run([str(cache), "--keep", "1"]) == 0
    assert not first.exists() and len(prepared_folders(cache)) == 1 and (cache / "mine").exists()
    again = simulate("exact-local", cache_dir=str(cache), dataset="ellipses", progress=False)
    assert again["exact-local"].per_user == kept["exact-local"].per_user
