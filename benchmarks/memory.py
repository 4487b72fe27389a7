"""Memory of 1,000 users of Fashion-MNIST on two Ray workers: everything that the run has started.

The run is a process of its own. All that descends from it, Ray's servers and workers included, is
sampled five times a second: the sum of the proportional set sizes (a page that processes share
counts once). The data are prepared anew, so that this is in the peak too.

    python -m corsage.benchmarks memory
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from corsage.benchmarks.measure import Measure
from corsage.core.errors import CorsageError

INTERVAL = 0.2
LIMIT = 2000.0  # MB
ROUNDS = 60
STRATEGIES = ("fedrep", "local")  # users that keep a head of 8 kB, and a model of 636 kB
WORDS = ["dataset=fashion-mnist", "num-users=1000", "engine=ray", "num-nodes=2"]
# Words in a command line, and the group it belongs to; the first that fits.
GROUPS = {
    "raylet/raylet": "Ray raylet",
    "ray::RayWorker": "Ray workers",
    "Agent": "Ray agents and monitors",
    "ray::": "other Ray workers",
    "default_worker.py": "other Ray workers",
    "gcs_server": "Ray gcs",
    "/ray/": "Ray agents and monitors",
    "run_simulation": "server and engine",
}


@dataclass
class Peak:
    """The sample with the most memory in all: MB and number of processes by group."""

    total: float = 0.0
    groups: Counter[str] = field(default_factory=Counter)
    processes: Counter[str] = field(default_factory=Counter)
    samples: int = 0

    def take(self, pids: set[int]) -> None:
        """One more sample."""
        groups: Counter[str] = Counter()
        processes: Counter[str] = Counter()
        for pid in pids:
            try:
                size, group = proportional(pid), group_of(pid)
            except (OSError, ValueError):  # it is gone
                continue
            groups[group] += size  # type: ignore[assignment]
            processes[group] += 1
        self.samples += 1
        if groups.total() > self.total:
            self.total, self.groups, self.processes = groups.total(), groups, processes

    def words(self) -> str:
        """The groups, the largest first."""
        return ", ".join(
            f"{name} {size:.0f}" + (f" ({count})" if (count := self.processes[name]) > 1 else "")
            for name, size in self.groups.most_common()
        )


P = TypeVar("P", bound=Peak)


def proportional(pid: int) -> float:
    """A process' proportional set size in MB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def group_of(pid: int) -> str:
    """What a process is, by its command line."""
    line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return next((name for words, name in GROUPS.items() if words in line), "other")


def family(root: int, known: set[int]) -> set[int]:
    """A process and all that descends from it, or from those known to, whoever adopted them."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
    found, size = {root} | (known & set(parents)), 0
    while len(found) > size:
        size = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found


def watched(words: list[str], peak: P) -> P:
    """Run a simulation in a process of its own; its samples are added to `peak`."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as log:
        places = [f"run-dir={folder}", f"cache-dir={folder}"]
        command = [sys.executable, "-m", "corsage.run_simulation", *words, *places]
        run = subprocess.Popen(command, stdout=log, stderr=log)
        known: set[int] = set()
        while run.poll() is None:
            known = family(run.pid, known)
            peak.take(known)
            time.sleep(INTERVAL)
        if run.returncode:
            log.seek(0)
            raise CorsageError(f"memory: the run failed: {log.read().strip()[-500:]}")
    return peak


def run(
    strategies: tuple[str, ...] = STRATEGIES, words: Sequence[str] = WORDS
) -> Iterator[Measure]:
    """The peak of each strategy."""
    for name in strategies:
        peak = watched([f"num-rounds={ROUNDS}", *words, f"strategy={name}"], Peak())
        title = f"{name}, 1,000 users, 2 Ray workers"
        yield Measure(title, peak.total, LIMIT, "MB", peak.words())
