"""A thousand to a million users that keep a state: what a round costs, and what all of it takes.

Each case is a run of the command line's engine in a process of its own, on data that are mapped
into memory: FedRep with a small network, 16 training and 4 test samples a user, 1,000 users a
round, as many of them evaluated after a round, and all at the end. The cost of a training round is
the median of its CPU seconds; its slope against the number of users, both as logarithms, should be
flat.

    python -m corsage.benchmarks million
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from corsage.benchmarks.measure import Measure
from corsage.core.errors import CorsageError
from corsage.experiments.runner import say

SIZES = (1_000, 10_000, 100_000, 1_000_000)
EACH, TRAIN = 20, 16
"""Samples of a user, and those it trains on."""
FEATURES, CLASSES, CLUSTERS = 8, 4, 10
AT_ONCE = 10_000
"""Users whose samples are drawn at once."""
ROUNDS, FIRST = 24, 4
"""Rounds, and the first that counts: evaluations are in the last ten."""
TRAINED = "training"
SLOPE, MIXED = 0.1, 60.0
LAST = (
    ("start", 60.0, "CPU s"), ("peak", 4.0, "GB"), ("files", 10, ""), ("report", 3.0, "MB"),
)  # fmt: skip
"""What the run with the most users takes, at most."""
FEDREP: dict[str, Any] = {
    "strategy": "fedrep",
    "num-rounds": ROUNDS,
    "hidden": "16",
    "evaluate-every": ROUNDS,
    "evaluate-users": 1_000,
}
MIXED_MODEL: dict[str, Any] = {
    "strategy": "mixed-model",
    "model": "linear",
    "labels": "numbers",
    "num-rounds": 20,
}


def written(folder: Path, users: int, numbers: bool) -> None:
    """So many users' samples: classes that each user shifts, or numbers in known clusters."""
    folder.mkdir(parents=True)
    rng, samples = np.random.default_rng(1), EACH * users
    kind, width = (np.float64, FEATURES // 2) if numbers else (np.int64, FEATURES)
    open_memmap = np.lib.format.open_memmap
    x = open_memmap(folder / "x.npy", "w+", np.float32, (samples, width))
    y = open_memmap(folder / "y.npy", "w+", kind, (samples,))
    clusters = rng.integers(CLUSTERS, size=users)
    centres = rng.normal(size=(CLUSTERS, width))
    weights = rng.normal(size=(width, CLASSES))
    for first in range(0, users, AT_ONCE):
        many = min(AT_ONCE, users - first)
        rows = slice(EACH * first, EACH * (first + many))
        x[rows] = rng.normal(size=(EACH * many, width))
        if numbers:
            own = centres[clusters[first : first + many]] + 0.5 * rng.normal(size=(many, width))
            y[rows] = (x[rows] * np.repeat(own, EACH, 0)).sum(1) + rng.normal(size=EACH * many)
        else:
            shift = np.repeat(rng.normal(size=(many, CLASSES)), EACH, 0)
            y[rows] = (x[rows] @ weights + shift).argmax(1)
    x.flush()
    y.flush()
    np.save(folder / "bounds.npy", EACH * np.arange(users)[:, None] + np.array([0, TRAIN, EACH]))
    if numbers:
        np.save(folder / "clusters.npy", clusters)


def child(words: dict[str, Any]) -> None:
    """A run in this process; its costs are the last line that it prints."""
    began = time.process_time()
    from corsage.app.engines import simulate
    from corsage.app.run.run_folder import RunFolder
    from corsage.core.configuration.config import Config
    from corsage.strategies.rounds.callbacks import Callback

    marks: list[tuple[str, float]] = []

    class Stopwatch(Callback):
        """Notes when a round begins, when its training is done, and when the results are there."""

        def on_round_start(self, strategy: Any, number: int) -> None:
            marks.append(("round", time.process_time()))

        def on_round_end(self, strategy: Any, row: dict[str, Any]) -> None:
            evaluated = row.get("loss") is not None
            marks.append(("evaluated" if evaluated else TRAINED, time.process_time()))

        def on_end(self, strategy: Any, results: Any) -> None:
            marks.append(("end", time.process_time()))

    usual = RunFolder.callbacks
    RunFolder.callbacks = lambda self, name: [*usual(self, name), Stopwatch()]  # type: ignore[method-assign]
    folder = simulate(Config.parse(words))
    rounds = [
        after - before
        for (what, before), (then, after) in pairwise(marks)
        if (what, then) == ("round", TRAINED)
    ]
    found = {
        "start": marks[0][1] - began,
        "rounds": rounds,
        "solved": marks[-1][1] - began,
        "all": time.process_time() - began,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
        "folder": str(folder),
        "report": (folder / "report.html").stat().st_size / 1e6,
    }
    print(json.dumps(found))


def files_in(folder: Path) -> int:
    """How many files a folder has, those of its folders included."""
    return sum(path.is_file() for path in folder.rglob("*"))


def measured(users: int, words: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """The costs of one case."""
    numbers = words.get("labels") == "numbers"
    data = scratch / f"{'numbers' if numbers else 'classes'}-{users}"
    written(data, users, numbers)
    own = {
        "dataset": "mapped",
        "data-file": str(data),
        "num-users": 0,
        "fraction-train": min(1_000 / users, 1.0),
        "run-dir": str(scratch / "runs"),
        **words,
    }
    command = [sys.executable, "-m", "corsage.benchmarks.million", json.dumps(own)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CorsageError(f"million: the run failed: {done.stderr.strip()[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return {**found, "files": files_in(Path(found["folder"]) / words["strategy"])}


def slope(costs: dict[int, float]) -> float:
    """Of a line through costs against users, both as logarithms."""
    x, y = np.log(list(costs)), np.log(list(costs.values()))
    return float(np.polyfit(x, y, 1)[0])


def run(sizes: tuple[int, ...] = SIZES) -> Iterator[Measure]:
    """All cases; of the largest what it takes in all."""
    most, each = f"{sizes[-1]:,} users", dict[int, float]()
    with tempfile.TemporaryDirectory() as folder:
        mixed = measured(sizes[-1], MIXED_MODEL, Path(folder))
        told = f"CPU s until solved {mixed['solved']:.0f}; peak {mixed['peak']:.1f} GB"
        yield Measure(f"mixed-model, {most}", mixed["all"], MIXED, "CPU s", told)
        for users in sizes:
            last = measured(users, FEDREP, Path(folder))
            each[users] = statistics.median(last["rounds"][FIRST:])
            say(f"{users:,} users: CPU ms a round {1e3 * each[users]:.0f}")
    whole = f"CPU s in all {last['all']:.0f}, of which results {last['all'] - last['solved']:.0f}"
    costs = ", ".join(f"{users:,}: {1e3 * cost:.0f}" for users, cost in each.items())
    yield Measure("training round: slope", slope(each), SLOPE, "", f"CPU ms a round: {costs}")
    for name, limit, unit in LAST:
        yield Measure(f"{name}, {most}", last[name], limit, unit, whole)


if __name__ == "__main__":
    child(json.loads(sys.argv[1]))
