"""Jobs done by processes that stay, as many as there are cores: runs of studies, rows of the bench.

What a process loads, and the data that it reads, it has for the next job as well.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

IN_WORKER = "CORSAGE_WORKER"
"""Is in a worker's environment."""
SAYS = "corsage: "
"""What a run's own complaint begins with."""


@dataclass
class Job:
    """One call of a function of Corsage's, by its module; its arguments are JSON.

    Parameters
    ----------
    name : as people are told of it.
    arguments : of the call.
    log : the file of what it prints.
    module, function : what is called; by itself a run in a folder, under some keys.
    order : jobs of smaller ones are begun first.
    alone : its process does no other job, as of Ray's, which leaves much behind.
    """

    name: str
    arguments: Sequence[Any]
    log: Path
    module: str = "app.cell"
    function: str = "play"
    order: tuple[Any, ...] = ()
    alone: bool = False

    @classmethod
    def of_run(cls, name: str, folder: Path, keys: Mapping[str, Any]) -> Job:
        """One run that is to be done: in which folder, with which keys."""
        log = folder.with_suffix(folder.suffix + ".log")
        return cls(name, [str(folder), dict(keys)], log, alone=keys.get("engine") == "ray")

    def line(self) -> str:
        """As its process reads it."""
        names = ("arguments", "module", "function")
        return json.dumps({"log": str(self.log), **{n: getattr(self, n) for n in names}}) + "\n"


@dataclass
class Ended:
    """How a job ended, and what it said last, if it ended badly."""

    job: Job
    code: int
    seconds: float
    cpu: float = 0.0
    answer: Any = None

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


def play(
    jobs: Iterable[Job], at_once: int, told: Callable[[Ended], Iterable[Job] | None]
) -> list[Ended]:
    """Do all jobs, and those that `told` says follow from one that has ended.

    Whatever ends this ends them too, and they can be finished later.
    """
    waiting: list[tuple[tuple[Any, ...], int, Job]] = []
    number = itertools.count()

    def add(more: Iterable[Job]) -> None:
        for job in more:
            heapq.heappush(waiting, (job.order, next(number), job))

    add(jobs)
    ended: list[Ended] = []
    over: queue.SimpleQueue[Ended] = queue.SimpleQueue()
    workers: list[Worker] = []
    begun = 0
    try:
        while waiting or begun > len(ended):
            while waiting and begun - len(ended) < at_once:
                worker = idle(workers, over)
                worker.begin(heapq.heappop(waiting)[2])
                begun += 1
            ended.append(over.get())
            add(told(ended[-1]) or ())
        return ended
    finally:
        for worker in workers:
            worker.stop()


def idle(workers: list[Worker], over: queue.SimpleQueue[Ended]) -> Worker:
    """A worker that has no job, a new one if none is there; those whose process is gone go."""
    for worker in [one for one in workers if one.gone and one.job is None]:
        workers.remove(worker)
        worker.stop()
    free = [worker for worker in workers if worker.job is None]
    if not free:
        workers.append(Worker(over))
    return free[0] if free else workers[-1]


class Worker:
    """A process that does one job after the other.

    Parameters
    ----------
    over : where it is said that a job has ended.
    """

    def __init__(self, over: queue.SimpleQueue[Ended]) -> None:
        self.over, self.gone = over, False
        self.job: Job | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._turn = threading.Lock()

    def begin(self, job: Job) -> None:
        """Give it a job."""
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with job.log.open("wb") as log:
            process = self._process or self._start(log)
        with self._turn:
            self.job, self._begun = job, time.monotonic()
            gone = self.gone
        if gone:
            self._say(process.wait() or 1, 0.0, None)
            return
        with contextlib.suppress(BrokenPipeError):  # it is over: the listener says so
            writer = stream(process.stdin)
            writer.write(job.line().encode())
            writer.flush()

    def _start(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start the process, whose input stays open as long as this one is there."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "corsage.app.cell"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment(),
        )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        return self._process

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        """Say of each job how it ended; of the last one its process's end, if that came first."""
        for line in stream(process.stdout):
            with contextlib.suppress(ValueError, KeyError):
                found = json.loads(line)
                self._say(int(found["code"]), float(found["cpu"]), found["answer"])
        code = process.wait()
        with self._turn:
            self.gone, cut_off = True, self.job is not None
        if cut_off:
            self._say(code or 1, 0.0, None)

    def _say(self, code: int, cpu: float, answer: Any) -> None:
        """Say how its job ended; from then on it is free, or gone."""
        job = self.job
        assert job is not None
        ended = Ended(job, code, time.monotonic() - self._begun, cpu, answer)
        self.gone = self.gone or job.alone
        self.job = None
        self.over.put(ended)

    def stop(self) -> None:
        """End it."""
        if (process := self._process) is None:
            return
        process.terminate()
        with contextlib.suppress(BrokenPipeError):
            stream(process.stdin).close()
        process.wait()


def stream(one: IO[bytes] | None) -> IO[bytes]:
    """An end of a pipe, which is there."""
    assert one is not None
    return one


def environment() -> dict[str, str]:
    """The same package for the process of a run, wherever this one has it from."""
    place = Path(__file__).resolve().parents[2]
    installed = place.name == "corsage" and (place / "__init__.py").exists()
    root = str(place.parent if installed else place)
    others = os.environ.get("PYTHONPATH", "")
    paths = os.pathsep.join(filter(None, (root, others)))
    return {**os.environ, "PYTHONPATH": paths, IN_WORKER: "yes"}


def lines(path: Path) -> list[str]:
    """The lines of a file; none if it is not there."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
