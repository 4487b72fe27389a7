"""Cost of Ray beside this process: to start, to hold, and for a message.

The same small run on both engines, with few and with many rounds, each as a process of its own. All
that descends from it is sampled five times a second: CPU seconds, and the proportional set size (a
page that processes share counts once; a sum of resident sizes would count it in each). What Ray
takes more with few rounds is its start; what more rounds take more, over their messages, is what a
message costs.

    python -m corsage.benchmarks ray
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from corsage.benchmarks.measure import Measure
from corsage.benchmarks.memory import Peak, watched

FEW, MANY, NODES = 12, 112, 2
START, MESSAGE, WORKERS = 8.0, 20.0, 600.0
WORDS = ["strategy=fedrep", "num-users=12", f"evaluate-every={MANY}", "hidden=16"]
TICK = os.sysconf("SC_CLK_TCK")


@dataclass
class Spent(Peak):
    """Also the CPU seconds of each process, as they were when it was last seen."""

    seconds: dict[int, float] = field(default_factory=dict)
    workers: float = 0.0

    def take(self, pids: set[int]) -> None:
        """One more sample."""
        super().take(pids)
        self.workers = max(self.workers, self.groups["Ray workers"])
        for pid in pids:
            try:
                self.seconds[pid] = cpu_seconds(pid)
            except OSError:  # it is gone
                continue

    @property
    def cpu(self) -> float:
        """All processes together."""
        return sum(self.seconds.values())


def cpu_seconds(pid: int) -> float:
    """What a process has spent so far."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / TICK


def spent(engine: str, rounds: int) -> Spent:
    """A run on an engine."""
    words = [*WORDS, f"engine={engine}", f"num-nodes={NODES}", f"num-rounds={rounds}"]
    return watched(words, Spent())


def run() -> Iterator[Measure]:
    """Start, memory of the workers and of everything, and a message."""
    cost = {(e, n): spent(e, n) for e in ("local", "ray") for n in (FEW, MANY)}
    few, local = cost["ray", FEW], cost["local", FEW]
    beside = f"CPU s of {FEW} rounds: local {local.cpu:.1f}, Ray {few.cpu:.1f}"
    yield Measure("Ray, 2 workers: start", few.cpu - local.cpu, START, "CPU s", beside)
    yield Measure("their memory (PSS)", few.workers, WORKERS, "MB", f"all: {few.words()} MB")
    more = {e: cost[e, MANY].cpu - cost[e, FEW].cpu for e in ("local", "ray")}
    each = 1e3 * (more["ray"] - more["local"]) / (NODES * (MANY - FEW))
    told = f"CPU s of {MANY - FEW} rounds: local {more['local']:.1f}, Ray {more['ray']:.1f}"
    yield Measure("a message beside the local engine's", each, MESSAGE, "CPU ms", told)
