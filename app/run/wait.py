"""`corsage wait`: until a run is over; leaves with the run's exit code.

`flwr run` leaves with 0 whatever happens. This asks the run folder where the run is written, or the
SuperLink by Flower's id of the run, which also knows of runs that never had a folder.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from corsage.app.output.usage import command, complain
from corsage.app.run.status import FINISHED, RUNNING, Status, read_status
from corsage.core.errors import ConfigError, CorsageError, NodeError, NodesSilent

USAGE = """\
usage: corsage wait RUN_FOLDER
       corsage wait RUN_ID SUPERLINK
       flwr run ... SUPERLINK --format json | corsage wait - SUPERLINK

Waits until a run is over. Leaves with 0 if it went well, 1 if it failed, 2 if a key or a file was
wrong, 75 if a resume may do (all devices are silent, or the server's process is gone), and prints
the line that says why. RUN_FOLDER is read at the server; RUN_ID is Flower's, and
SUPERLINK the name of the connection, as `flwr run` takes it (its runs that fail leave with 1).
"""
STATUS_PAUSE, LONGEST_LOOK = 1.0, 30.0
"""Seconds between two looks; at a SuperLink a twentieth of the time so far, within these."""
FAILED_WITH = "ServerApp failed with exception: "


def wait_for_folder(folder: Path) -> Status:
    """The last status of a folder's run, once it is over."""
    while (status := read_status(folder)).state == RUNNING:
        if status.gone and read_status(folder).state == RUNNING:
            line = f"process {status.pid} is gone without a word; the run can be finished: {folder}"
            return Status("failed", NodesSilent.code, line)
        time.sleep(STATUS_PAUSE)
        if not folder.exists():
            return Status("failed", 2, f"{folder}: is gone: its keys or files could not be used.")
    return status


def wait_for_run(run_id: str, superlink: str) -> Status:
    """The last status of a run of Flower's, from its SuperLink; each look is a process."""
    begun = time.monotonic()
    while True:
        state, details = asked(run_id, superlink)
        if state == "finished:completed":
            return Status(FINISHED, 0)
        if state.startswith("finished:"):
            line = details.removeprefix(FAILED_WITH) if ":failed" in state else "was stopped."
            return Status("failed", 1, " ".join(line.split()))
        time.sleep(min(max((time.monotonic() - begun) / 20, STATUS_PAUSE), LONGEST_LOOK))


def asked(run_id: str, superlink: str) -> tuple[str, str]:
    """The state of a run and what is said of it."""
    command = ["flwr", "ls", superlink, "--run-id", run_id, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        (run,) = parsed(done.stdout)["runs"]
        return run["status"], run.get("status-details", "")
    except (ValueError, KeyError, TypeError) as error:
        said = " ".join((done.stderr or done.stdout).split())
        raise NodeError(f"run {run_id}: {superlink} does not tell: {said[-300:]}") from error


def parsed(text: str) -> dict[str, list[dict[str, str]]]:
    """The JSON at the end of what a command of Flower's prints."""
    found: dict[str, list[dict[str, str]]] = json.loads(text[text.index("{") :])
    return found


def started(text: str) -> str:
    """The id of the run that `flwr run --format json` has started."""
    try:
        return str(json.loads(text[text.index("{") :])["run-id"])
    except (ValueError, KeyError, TypeError) as error:
        said = " ".join(text.split())[-300:]
        raise NodeError(f"no run was started: {said or 'nothing was said'}") from error


def wait(words: list[str]) -> Status:
    """The last status of the run that the words mean."""
    if len(words) == 1 and not (words[0].isdigit() or words[0] == "-"):
        return wait_for_folder(Path(words[0]).expanduser())
    if len(words) != 2:
        raise ConfigError("wait: say a run folder, or a run's id and the SuperLink: see --help.")
    run_id = started(sys.stdin.read()) if words[0] == "-" else words[0]
    return wait_for_run(run_id, words[1])


@command(USAGE, CorsageError, needs_words=True)
def run(words: list[str]) -> int:
    """Do what the words say; the run's exit code, or 2 with one line on what is wrong."""
    status = wait(words)
    if status.state == FINISHED:
        return 0
    return complain(status.line, status.exit_code or 1)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
