"""Runs as processes of their own, and what they said."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 900.0
"""Seconds after which a process that neither ends nor goes on is a failure."""


class Stuck(Exception):
    """A process that neither ends nor goes on."""


class Process:
    """A run under way. Its log is not beside its files: their disk may be full."""

    def __init__(
        self, words: list[str], place: Path, first: Callable[[], None] | None = None
    ) -> None:
        handle, name = tempfile.mkstemp(suffix=".log")
        os.close(handle)
        self.log, self.text = Path(name), ""
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "run_simulation.py"), *words],
                cwd=place,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=first,  # noqa: PLW1509 - one thread
                start_new_session=True,
            )

    def said(self) -> str:
        """All that it has printed."""
        return self.text or self.log.read_text(encoding="utf-8", errors="replace")

    def forget(self) -> None:
        """Keep what it has printed, and not the file."""
        self.text = self.said()
        self.log.unlink(missing_ok=True)

    def holds(self, folder: Path) -> bool:
        """Whether it is the one that is at work on a run folder."""
        try:
            return bool(json.loads((folder / "lock.json").read_text())["pid"] == self.process.pid)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def alive(self) -> bool:
        """Whether it is still at work."""
        return self.process.poll() is None

    def until(self, done: Callable[[], bool]) -> None:
        """Wait until something is so, or the process has ended."""
        end = time.monotonic() + PATIENCE
        while self.alive() and not done():
            if time.monotonic() > end:
                raise Stuck(self.said()[-2000:])
            time.sleep(0.005)

    def kill(self) -> None:
        """End it and all that it started, as a loss of power would."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """It is at work, and does not move."""
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGCONT)

    def ended(self) -> int:
        """Its exit code, when it has ended."""
        self.until(lambda: False)
        return self.process.wait(60)


@contextmanager
def process(
    words: list[str], place: Path, first: Callable[[], None] | None = None
) -> Iterator[Process]:
    """A process that does not outlive the block."""
    one = Process(words, place, first)
    try:
        yield one
    finally:
        one.kill()
        one.forget()


def rounds_in(folder: Path) -> int:
    """How many rounds the metrics of a run tell of."""
    return sum(path.read_bytes().count(b"\n") for path in folder.rglob("metrics.jsonl"))


def line_of(text: str) -> str:
    """The line in which a run says why it failed; `` if there is none, or more than that."""
    lines = re.findall(r"^corsage: (.*)$", text, re.MULTILINE)
    return lines[0] if len(lines) == 1 and "Traceback (most" not in text else ""


def numbers(folder: Path) -> list[dict[str, Any]]:
    """The final numbers of a run; how long it took is none of them."""
    results = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["results"]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in results]
