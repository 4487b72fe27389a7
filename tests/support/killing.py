"""Runs as processes of their own that are killed for real, at points that no machine is too slow
or too fast for.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import corsage

ROOT = Path(corsage.__file__).parent
SCRIPT = ROOT / "run_simulation.py"
HOOK = Path(__file__).parent / "standstill"
LONGEST = 0.1
"""Seconds that a run may go on before it is killed at random: two rounds or so."""


@dataclass(frozen=True)
class Point:
    """Where a process stands still: just before it writes a file, or puts it in its place.

    Parameters
    ----------
    file : a regular expression for its path.
    rounds : how many rounds the file's run folder tells of by then, of all strategies.
    after : how many such files the process has written since.
    """

    file: str
    rounds: int = 0
    after: int = 0

    def environment(self, flag: Path) -> dict[str, str]:
        """What a process needs to stand still there: it makes the flag, and no second one does."""
        point = {**self.__dict__, "flag": str(flag)}
        return {"PYTHONPATH": hooked(), "STAND_STILL": json.dumps(point)}


def hooked() -> str:
    """The path on which a process finds what lets it stand still."""
    return os.pathsep.join([str(HOOK), *filter(None, [os.environ.get("PYTHONPATH", "")])])


def kill_at(
    folder: Path, words: list[str], point: Point, environment: Mapping[str, str] | None = None
) -> None:
    """Start the command line with these words, and kill it when it stands still."""
    flag = folder / "stands-still"
    with running(folder, words, {**point.environment(flag), **(environment or {})}) as process:
        wait_for(flag.exists, process, folder)
        kill(process)
    flag.unlink()


def kill_after(folder: Path, words: list[str], rounds: int, last: Point) -> float:
    """Kill it at a random moment after some rounds; at the latest where it stands still.

    Returns the seconds that passed: what a failed test shows.
    """
    flag, seconds = folder / "stands-still", random.uniform(0, LONGEST)
    with running(folder, words, last.environment(flag)) as process:
        wait_for(lambda: rounds_in(folder) >= rounds, process, folder)
        time.sleep(seconds)
        kill(process)
    flag.unlink(missing_ok=True)
    return seconds


@contextlib.contextmanager
def running(
    folder: Path, words: list[str], environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """The command line in a process of its own, which does not outlive the block."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), *words],
            cwd=folder,
            env={**os.environ, **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(done: Callable[[], object], process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait as long as the process is there: how fast the machine is does not matter."""
    while not done():
        assert process.poll() is None, (folder / "log").read_text()
        time.sleep(0.01)


def kill(process: subprocess.Popen[bytes]) -> None:
    """As the kernel does when memory is short: nothing of the process has a say."""
    assert process.poll() is None, "the run ended before it could be killed"
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def rounds_in(folder: Path) -> int:
    """How many rounds the run folders in a folder tell of."""
    return sum(path.read_text().count("\n") for path in folder.rglob("metrics.jsonl"))


def run_folder(folder: Path) -> Path:
    """The only run folder of a process that was started there."""
    (found,) = (folder / "runs").iterdir()
    return found
