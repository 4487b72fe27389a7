"""How a run ended is in a file and an exit status, whatever ended it."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from corsage.app import server_app
from corsage.app.command import run
from corsage.app.run import wait
from corsage.app.run.recorder import Recorder
from corsage.app.run.run_folder import RunFolder
from corsage.app.run.status import Status, read_status, running
from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError, RoundFailed
from tests.support.killing import Point, kill_at, run_folder

QUICK = ["num-users=4", "num-rounds=1", "strategy=local", "hidden=4", "fine-tune-epochs=0"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_that_went_well(here: Path) -> None:
    assert run(QUICK, "") == 0
    status = read_status(run_folder(here))
    assert (status.state, status.exit_code, status.line) == ("finished", 0, "")
    assert run(["wait", str(run_folder(here))], "") == 0


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (RoundFailed("round 3: 0 usable\n replies."), 1, "round 3: 0 usable replies."),
        (ZeroDivisionError(), 1, "ZeroDivisionError"),
        (KeyboardInterrupt(), 130, "KeyboardInterrupt"),
    ],
)
def test_a_run_that_failed(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    line: str,
) -> None:
    def unfinished(self: RunFolder) -> list[str]:
        assert read_status(self.folder).state == "running"
        raise error

    monkeypatch.setattr(RunFolder, "unfinished", unfinished)
    if isinstance(error, ZeroDivisionError):
        with pytest.raises(ZeroDivisionError):
            run(QUICK, "")
    else:
        assert run(QUICK, "") == code
    folder = run_folder(here)
    assert (read_status(folder).state, read_status(folder).line) == ("failed", line)
    capsys.readouterr()
    assert run(["wait", str(folder)], "") == code
    assert capsys.readouterr().err == f"corsage: {line}\n"


def test_while_a_run_goes_on_its_status_says_what_was_noted_last(tmp_path: Path) -> None:
    """Where devices are waited for, its supervisor reads that; another process's file stays."""
    recorder = Recorder(tmp_path / "fedavg", {}, Config.parse({}))
    recorder.on_note("there is no file yet")
    for status, line in ((running("17"), "no node replies"), (Status("running", pid=1), "")):
        status.write(tmp_path)
        recorder.on_note("no node replies")
        assert read_status(tmp_path) == replace(status, line=line)


def test_who_waits_for_a_run_that_cannot_be_is_told(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server's run whose model does not fit leaves no folder."""
    folder = here / "run"
    folder.mkdir()
    running("17").write(folder)
    monkeypatch.setattr(wait.time, "sleep", lambda _: shutil.rmtree(folder))
    assert run(["wait", str(folder)], "") == 2
    assert "run: is gone: its keys or files could not be used" in capsys.readouterr().err


def test_a_run_that_was_killed_does_not_run_for_ever(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kill_at(here, QUICK, Point("/result.json$"))
    assert read_status(run_folder(here)).state == "running"
    assert run(["wait", str(run_folder(here))], "") == 75
    assert "is gone without a word; the run can be finished" in capsys.readouterr().err


def test_it_waits_while_the_process_is_there(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the pid of another process is not the one that it had."""
    running("17").write(here)
    monkeypatch.setattr(wait.time, "sleep", lambda _: Status("finished", 0).write(here))
    assert run(["wait", str(here)], "") == 0
    other = Status("running", pid=os.getpid(), host=running().host, since="1")
    assert other.gone and not running().gone


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"state": "running", "colour": 1}'])
def test_no_status_is_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    if content is not None:
        (here / "status.json").write_text(content)
    assert run(["wait", str(here)], "") == 2
    assert capsys.readouterr().err.count("\n") == 1


LISTING = {"runs": [{"status": "finished:failed", "status-details": f"{wait.FAILED_WITH}no\nuse."}]}


@pytest.mark.parametrize(
    ("listing", "code", "line"),
    [
        (LISTING, 1, "no use."),
        ({"runs": [{"status": "finished:stopped"}]}, 1, "was stopped."),
        ({"runs": [{"status": "finished:completed"}]}, 0, ""),
        ({"runs": []}, 2, "does not tell"),
    ],
)
def test_flowers_own_runs(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    listing: dict[str, object],
    code: int,
    line: str,
) -> None:
    """By the SuperLink's list, after whatever else the command prints."""
    states = [{"runs": [{"status": "running"}]}, listing]

    def listed(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command == ["flwr", "ls", "here", "--run-id", "17", "--format", "json"]
        return subprocess.CompletedProcess(command, 0, f"Listing\n{json.dumps(states.pop(0))}", "")

    monkeypatch.setattr(wait.subprocess, "run", listed)
    monkeypatch.setattr(wait, "STATUS_PAUSE", 0)
    assert run(["wait", "17", "here"], "") == code
    assert line in capsys.readouterr().err


def test_what_flwr_run_says_is_understood() -> None:
    assert wait.started('Using here\n{"success": true, "run-id": "17"}') == "17"
    for said in ("", '{"success": false}', "{"):
        with pytest.raises(wait.NodeError, match="no run was started"):
            wait.started(said)


def test_flowers_log_has_one_line_of_what_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("a log of Flower's")
    log.addFilter(server_app.one_line)
    for error in (ConfigError("lr=-1:\n no."), ZeroDivisionError("a bug")):
        try:
            raise error
        except Exception as raised:
            log.error("%s raised an exception", "ServerApp", exc_info=raised)
    refused, bug = caplog.records
    assert refused.getMessage() == "corsage: lr=-1: no." and refused.exc_info is None
    assert bug.exc_info and "Traceback" in caplog.text


def test_a_supervisor_sees_it(here: Path) -> None:
    """`corsage wait` as a process of its own: the exit status is the run's."""
    Status("failed", 1, "too few users.").write(here)
    command = [sys.executable, "-m", "corsage.run_simulation", "wait", str(here)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "corsage: too few users.\n")
