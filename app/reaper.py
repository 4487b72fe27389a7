"""A process that ends what another one has started, should that one be killed.

Run as a file of its own, with the other's pid; it is told by its standard input that all is well.
Ray's agents would stay for minutes otherwise: they are grandchildren, and nobody tells them.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path

OFTEN, SELDOM = 0.25, 2.0
"""Seconds between two looks at the processes: while Ray starts, and later."""
STARTING, END_SECONDS = 60.0, 20.0


def processes() -> dict[int, tuple[int, str]]:
    """Parent and birth of every process: a pid alone may be another's later."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if fields[0] != "Z":
            found[int(folder.name)] = int(fields[1]), fields[19]
    return found


def descendants(roots: set[int], there: dict[int, tuple[int, str]]) -> dict[int, str]:
    """All that these processes have started, and when each was born; not this process."""
    found: dict[int, str] = {}
    wave = set(roots)
    while wave:
        wave = {p for p, (parent, _) in there.items() if parent in wave and p not in found}
        found |= {pid: there[pid][1] for pid in wave}
    found.pop(os.getpid(), None)
    return found


def alive(seen: dict[int, str], there: dict[int, tuple[int, str]]) -> dict[int, str]:
    """Those that are still the ones that were seen."""
    return {pid: birth for pid, birth in seen.items() if pid in there and there[pid][1] == birth}


def watch(main: int) -> dict[int, str]:
    """Processes that one has started, as long as it is there; none if it says that all is well.

    A byte on the standard output says that this one is in its place.
    """
    begun, seen = time.monotonic(), dict[int, str]()
    seen |= descendants({main}, processes())
    os.write(1, b".")
    while True:
        there = processes()
        seen = alive(seen, there)
        seen |= descendants({main, *seen}, there)
        pause = OFTEN if time.monotonic() - begun < STARTING else SELDOM
        if select.select([0], [], [], pause)[0]:
            return {} if os.read(0, 1) else seen


def end(seen: dict[int, str]) -> None:
    """Kill them, and what they have started since."""
    until = time.monotonic() + END_SECONDS
    while time.monotonic() < until:
        there = processes()
        seen = alive(seen, there)
        seen |= descendants(set(seen), there)
        if not seen:
            return
        for pid in seen:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(OFTEN)


if __name__ == "__main__":
    end(watch(int(sys.argv[1])))
