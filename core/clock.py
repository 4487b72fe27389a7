"""Seconds that a user waits for a strategy, and for a whole command; when a process began."""

from __future__ import annotations

import os
import time
from contextvars import ContextVar
from pathlib import Path


def born(pid: int) -> str:
    """When a process began, in the system's ticks; nothing if it is not there.

    Where the system does not say, only that it is there.
    """
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return "" if words[0] in "ZX" else words[19]
    except OSError:
        return "there" if not Path("/proc/self").exists() and is_there(pid) else ""


def is_there(pid: int) -> bool:
    """Tell whether there is a process of that number."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def age() -> float:
    """Seconds since this process began; where that is not known, its CPU seconds."""
    try:
        ticks = int(born(os.getpid())) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks
    except (OSError, AttributeError, ValueError):
        return time.process_time()


LOADED = time.monotonic() - age()
"""When this process began."""
COMMAND_START: ContextVar[float] = ContextVar("COMMAND")
"""When the command that is at work began, for a process that has nothing else to do."""


class Clock:
    """Seconds of a strategy, from its start to its rows of the table; a resumed run counts on.

    Parameters
    ----------
    before : seconds of earlier attempts, up to the checkpoint where this one goes on.
    """

    def __init__(self) -> None:
        self.start()

    def start(self, before: float = 0.0) -> None:
        """Begin to count."""
        self.before, self._begin = before, time.monotonic()
        self._shared, self._last, self._own = 0.0, before, dict[str, float]()

    @property
    def seconds(self) -> float:
        """Of this attempt so far, and of those before it."""
        return self.before + time.monotonic() - self._begin

    @property
    def attempt(self) -> float:
        """Seconds of this attempt up to its last row."""
        return self._last - self.before

    def row(self, name: str, further: bool) -> float:
        """Seconds of a row that is done now.

        A `further` row has those of the first one, which it shares, and its own evaluations.
        """
        last, self._last = self._last, self.seconds
        if further:
            self._own[name] = self._own.get(name, 0.0) + self._last - last
        else:
            self._shared = self._last
        return self._shared + self._own.get(name, 0.0)
