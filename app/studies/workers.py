"""The runs of a study, each in a process of its own, as many at a time as there are cores."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

WORKER_PAUSE = 0.05
"""Seconds between two looks at the processes."""
SAYS = "corsage: "
"""What a run's own complaint begins with."""


@dataclass
class Job:
    """One run that is to be done: in which folder, with which keys."""

    name: str
    folder: Path
    keys: Mapping[str, Any]

    @property
    def log(self) -> Path:
        """The file of what its process prints."""
        return self.folder.with_suffix(self.folder.suffix + ".log")


@dataclass
class Ended:
    """How the process of a run ended, and what it said last, if it ended badly."""

    job: Job
    code: int
    seconds: float

    @property
    def line(self) -> str:
        """Why it failed, in a line."""
        if not self.code:
            return ""
        said = [line for line in lines(self.job.log) if line.strip()]
        own = [line for line in said if line.startswith(SAYS)] or said
        fallback = f"its process ended with {self.code}"
        return own[-1].removeprefix(SAYS)[:400] if own else fallback


def workers(asked: int, threads: int, jobs: int) -> int:
    """The number of runs at the same time."""
    fit = max(1, cores() // max(threads, 1))
    return max(1, min(asked or fit, jobs))


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def play(jobs: list[Job], at_once: int, told: Callable[[Ended], None]) -> list[Ended]:
    """Do all runs; whatever ends this ends them too, and they can be finished later."""
    waiting, ended = list(jobs), list[Ended]()
    running: list[Process] = []
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(Process(waiting.pop(0)))
            for process in [p for p in running if p.over]:
                running.remove(process)
                ended.append(process.ended())
                told(ended[-1])
            time.sleep(WORKER_PAUSE if running else 0.0)
    finally:
        for process in running:
            process.stop()
    return ended


class Process:
    """The process of one run."""

    def __init__(self, job: Job) -> None:
        self.job, self.begun = job, time.monotonic()
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with job.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "corsage.app.cell", str(job.folder)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(),
            )
        self._tell(json.dumps(dict(job.keys)) + "\n")

    def _tell(self, line: str) -> None:
        """A line to its standard input, which stays open as long as this process is there."""
        with contextlib.suppress(BrokenPipeError):
            self._input.write(line.encode())
            self._input.flush()

    @property
    def _input(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def over(self) -> bool:
        """True if it has ended."""
        return self._process.poll() is not None

    def ended(self) -> Ended:
        """The end that it took."""
        self._close()
        return Ended(self.job, self._process.wait(), time.monotonic() - self.begun)

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._close()
        self._process.wait()

    def _close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._input.close()


def environment() -> dict[str, str]:
    """The same package for the process of a run, wherever this one has it from."""
    place = Path(__file__).resolve().parents[2]
    installed = place.name == "corsage" and (place / "__init__.py").exists()
    root = str(place.parent if installed else place)
    others = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, others)))}


def lines(path: Path) -> list[str]:
    """The lines of a file; none if it is not there."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
