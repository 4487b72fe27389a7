"""Silence of the console command: seconds from a process's start to its first line.

Cold means that the files of all that it loads were dropped from the system's cache before, as after
a start of the machine (Linux; files that other processes have in use stay).
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from corsage.benchmarks.measure import Measure

TIMES = 5
TARGET = 1.0
RUN = ("num-users=4", "num-rounds=1", "strategy=local")
CODE = "from corsage.app.command import main; main()"
CASES = {"run": ("run", *RUN), "help": ("--help",), "a mistake": ("run", "num-round=3")}


def run() -> Iterator[Measure]:
    """Seconds to the first line, warm and cold, and what a process spends until then."""
    for name, words in CASES.items():
        yield measured(f"{name}, warm", words, lambda: None)
    if hasattr(os, "posix_fadvise"):
        yield measured("run, cold", CASES["run"], drop_caches)


def measured(name: str, words: tuple[str, ...], before: Callable[[], None]) -> Measure:
    """The median over some starts; the CPU seconds are those of the whole process."""
    wall, cpu = [], []
    for _ in range(TIMES):
        before()
        used = spent()
        wall.append(first_line(words))
        cpu.append(spent() - used)
    beside = f"CPU s of the whole process {median(cpu):.2f}"
    return Measure(name, median(wall), TARGET, "s", beside)


def first_line(words: tuple[str, ...]) -> float:
    """Seconds until a process says something; it is then left to end."""
    command = [sys.executable, "-c", CODE, *words]
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        with subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            assert process.stdout
            process.stdout.readline()
            seconds = time.monotonic() - begin
            process.stdout.read()
    return seconds


def spent() -> float:
    """CPU seconds of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def drop_caches() -> None:
    """Let the system forget the files of all packages, and of Python."""
    for folder in {Path(entry) for entry in sys.path if Path(entry).is_dir()}:
        for pattern in ("**/*.pyc", "**/*.py", "**/*.so*"):
            for path in folder.glob(pattern):
                forget(path)


def forget(path: Path) -> None:
    """Drop one file from the system's cache."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)
