"""Forgetting a school of 139: what is left beside a run without it.

Figures are the largest relative difference of all users' predictions, what users send, and seconds
in which the run is written anew, as a share of those of the run without the school.
"""

from __future__ import annotations

import io
import logging
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np

from corsage.app.command import run as command
from corsage.app.results.run import Run
from corsage.app.run.loaded import load
from corsage.benchmarks.measure import Measure
from corsage.benchmarks.statistics import Schools, schools
from corsage.core.arrays import Floats
from corsage.core.errors import CorsageError

GONE = 17
SAME = {"none": 1e-10, "user": 1e-10, "federated": 1e-5}
"""How far predictions may be apart by `scale`: one that all agree on changes the sums' digits."""


def run() -> list[Measure]:
    """With all scales."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    return [measure for scale in SAME for measure in compared(scale)]


def compared(scale: str) -> list[Measure]:
    """A run that forgets, and one without."""
    data = schools()
    others = data.school != GONE
    with tempfile.TemporaryDirectory() as place:
        whole, _ = made(Path(place) / "whole", data, scale)
        rest = Schools(*(part[others] for part in data))
        wanted, seconds = made(Path(place) / "rest", rest, scale)
        begin = time.perf_counter()
        quiet(["forget", str(whole), f"user={GONE}"])
        taken = time.perf_counter() - begin
        one, other = load(whole), load(wanted)
        far = difference(predictions(one, rest), predictions(other, rest))
        sent = one.json()[0]["bytes_up"]
    beside = f"{taken:.2f} s; a run without the school {seconds:.2f} s"
    return [
        Measure(f"scale={scale}: predictions", far, SAME[scale], "relative"),
        Measure(f"scale={scale}: users send", float(sent), 1.0, "bytes"),
        Measure(f"scale={scale}: seconds", taken / seconds, 1.5, "of a run", beside),
    ]


def made(folder: Path, data: Schools, scale: str) -> tuple[Path, float]:
    """A run's folder, and the seconds that it took."""
    folder.mkdir()
    file, begin = folder / "schools.npz", time.perf_counter()
    np.savez(file, x=data.x[:, :-1], y=data.y, user=data.school, cluster=data.sector)
    words = {
        "strategy": "mixed-model", "dataset": "npz", "data-file": file, "labels": "numbers",
        "user-column": "user", "cluster-column": "cluster", "model": "linear", "scale": scale,
        "mixed-keep-sums": "true", "run-dir": folder / "runs", "cache-dir": folder / "cache",
    }  # fmt: skip
    quiet([f"{key}={value}" for key, value in words.items()])
    return next((folder / "runs").iterdir()), time.perf_counter() - begin


def quiet(words: list[str]) -> None:
    """A command, without what it prints; CorsageError if it fails."""
    errors = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(errors):
        code = command(words)
    if code:
        raise CorsageError(errors.getvalue().strip().splitlines()[-1])


def predictions(found: Run, data: Schools) -> dict[str, Floats]:
    """What every user's model says of the first records."""
    row = found["mixed-model"]
    return {user: np.asarray(row.user(user).predict(data.x[:20, :-1])) for user in row.users}


def difference(one: dict[str, Floats], other: dict[str, Floats]) -> float:
    """The largest relative difference; infinite if they are not of the same users."""
    if set(one) != set(other):
        return float("inf")
    return max(float(np.max(np.abs(one[u] / other[u] - 1))) for u in one)
