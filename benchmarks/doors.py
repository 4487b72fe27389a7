"""Every strategy by its name on every built-in data set, with default keys: what a newcomer meets.

python -m corsage.benchmarks doors [--data NAME,NAME] [--strategies NAME,NAME] [--json FILE]
    a table a data set: the result, its CPU seconds, and the best of what it is to be compared with
    (its family, local, one model for all), or the line that says why there is none. Marked: worse
    than that by more than two standard errors (paired over users), or slower than allowed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType

import numpy as np

from corsage.app.simulation import simulate
from corsage.core.errors import CorsageError
from corsage.core.measures import measure_of
from corsage.core.registry import ALGORITHMS, DATASETS, source

SEARCHING = ("mixed-model", "single-cluster", "convex-clustering", "async-l2gd", "async-al2sgd")
"""They look for lambda or variances first."""
ALLOWED, SEARCH = 10.0, 20.0
"""CPU seconds of a run, and of one that searches."""
MOST = 120.0
"""CPU seconds after which a run is given up."""
BOUNDS = ("local", "fedavg", "exact-local", "exact-global", "exact-cluster")
"""What others are measured against: they are never marked for being worse."""
NOT_BUILT_IN = ("csv", "npz", "mapped", "memory")
"""Data sets that are a file of one's own."""


class TooLong(BaseException):  # nobody takes it for a user's failure
    """A run that took more CPU seconds than anybody waits for."""


@dataclass
class Cell:
    """One strategy on one data set."""

    data: str
    strategy: str
    cpu: float
    said: str = ""
    measure: str = ""
    mean: float = float("nan")
    users: dict[str, float] = field(default_factory=dict)
    best: str = ""
    marks: list[str] = field(default_factory=list)

    def text(self) -> str:
        """The result as it is printed."""
        if not self.users:
            return self.said
        measure = measure_of({"measure": self.measure})
        return f"{measure.text(self.mean)}{measure.unit or ' ' + measure.word}"


def main(words: Sequence[str]) -> int:
    """Run the cells, data set by data set, and print a table of each when it is done."""
    options = parser().parse_args(words)
    names = options.strategies.split(",") if options.strategies else list(ALGORITHMS)
    found: list[Cell] = []
    for data in options.data.split(",") if options.data else built_in():
        cells = [cell(name, data) for name in names]
        compare(cells)
        found += cells
        print("\n".join(table(data, cells)), flush=True)
        if options.json:
            options.json.write_text(json.dumps([asdict(one) for one in found]), encoding="utf-8")
    marked = [f"{c.strategy} on {c.data}: {', '.join(c.marks)}" for c in found if c.marks]
    print(f"\n{len(found)} cells, {len(marked)} marked.", *marked, sep="\n- ")
    return 0


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        "python -m corsage.benchmarks doors",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--data", default="", metavar="NAMES", help="these data sets alone")
    made.add_argument("--strategies", default="", metavar="NAMES", help="these strategies alone")
    made.add_argument("--json", type=Path, metavar="FILE", help="write every cell there")
    return made


def built_in() -> list[str]:
    """The data sets that need no file to be named."""
    return [name for name in DATASETS if name not in NOT_BUILT_IN]


def cell(name: str, data: str) -> Cell:
    """One run by name, or the line that says why there is none."""
    print(f"{data}: {name}", file=sys.stderr, flush=True)
    begin, found = time.process_time(), Cell(data, name, 0.0)
    try:
        with limited(), contextlib.redirect_stderr(io.StringIO()):
            row = simulate(name, dataset=data, progress=False)[name]
        found.measure, found.mean, found.users = row.measure, row.score.mean, row.per_user
    except CorsageError as error:
        found.said = " ".join(str(error).split())
    except TooLong:
        found.said = f"given up after {MOST:.0f} CPU s"
    found.cpu = time.process_time() - begin
    if found.cpu > (SEARCH if name in SEARCHING else ALLOWED):
        found.marks.append(f"{found.cpu:.0f} CPU s")
    return found


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """End what takes too long."""

    def end(number: int, frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, MOST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def compare(cells: Sequence[Cell]) -> None:
    """Name the best that each is to be compared with, and mark what is worse beyond noise."""
    for one in cells:
        beside = [other for other in cells if other.users and comparable(one, other)]
        if not one.users or not beside:
            continue
        measure = measure_of({"measure": one.measure})
        best = max(beside, key=lambda other: float(measure.merit([other.mean])[0]))
        one.best = f"{best.strategy} {best.text()}"
        if one.strategy not in BOUNDS and worse(one, best):
            one.marks.append(f"worse than {one.best}")


def comparable(one: Cell, other: Cell) -> bool:
    """Whether a cell is of the same family, or what a user would have alone or with all others."""
    family = ALGORITHMS[source(one.strategy)].family
    kin = bool(family) and ALGORITHMS[source(other.strategy)].family == family
    bounds = BOUNDS[2:4] if family in ("known_clusters", "convex_clustering") else BOUNDS[:2]
    return other is not one and (kin or other.strategy in bounds)


def worse(one: Cell, other: Cell) -> bool:
    """Whether users have less by more than two standard errors of the paired difference."""
    both = sorted(one.users.keys() & other.users.keys())
    merit = measure_of({"measure": one.measure}).merit
    gaps = np.asarray(merit([other.users[u] for u in both])) - merit([one.users[u] for u in both])
    return bool(len(gaps) > 1 and gaps.mean() > 2 * gaps.std(ddof=1) / np.sqrt(len(gaps)))


def table(data: str, cells: Sequence[Cell]) -> Iterator[str]:
    """A data set's cells as Markdown; strategies that say the same share a line."""
    yield f"\n### {data}\n\n| strategy | result | CPU s | best beside it | |\n|---|---|---|---|---|"
    for one in cells:
        if one.users:
            marks = "; ".join(one.marks)
            yield f"| `{one.strategy}` | {one.text()} | {one.cpu:.1f} | {one.best} | {marks} |"
    lines: dict[str, list[str]] = {}
    for one in cells:
        if one.said:
            line = one.said.removeprefix(f"{one.strategy}: ")
            lines.setdefault(line, []).append(f"`{one.strategy}`")
    for line, names in lines.items():
        yield f"\n{', '.join(names)}: {line}"
