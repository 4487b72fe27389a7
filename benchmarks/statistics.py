"""The summary of linear models beside statsmodels', on a file of 139 schools.

All pupils are for training, so that both have the same rows. Figures are relative differences: of
variances and estimates the largest, of standard errors the largest, and of log likelihoods the
absolute one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.benchmarks.measure import Measure
from corsage.benchmarks.mixed_reference import Reference, reference
from corsage.benchmarks.schools import pupils
from corsage.core.arrays import Array, Floats, Ints
from corsage.core.configuration.config import Config
from corsage.strategies import strategy_class

TARGET = 1e-3


class Schools(NamedTuple):
    """All pupils: x with the column of ones last, scores, and who is in which school and sector."""

    x: Floats
    y: Floats
    school: Ints
    sector: Array


def schools() -> Schools:
    """The file as numbers, without gaps."""
    rows = pupils(gaps=0.0)
    school = np.unique([row[0] for row in rows], return_inverse=True)[1]
    sector = np.unique([row[1] for row in rows], return_inverse=True)[1]
    x = np.array([[row[3], row[4], row[2] == "male", 1.0] for row in rows], np.float64)
    return Schools(x, np.array([row[5] for row in rows], np.float64), school, sector)


def written(data: Schools, folder: Path) -> Path:
    """All pupils for training, and one of each school once more for testing."""
    again = np.unique(data.school, return_index=True)[1]
    rows = np.concatenate([np.arange(len(data.y)), again])
    path = folder / "schools.npz"
    np.savez(
        path,
        x=data.x[rows, :-1], y=data.y[rows], user=data.school[rows], cluster=data.sector[rows],
        test=np.arange(len(rows)) >= len(data.y),
    )  # fmt: skip
    return path


def summary(strategy: str, file: Path, **keys: Any) -> dict[str, Any]:
    """What Corsage finds."""
    own = {
        "dataset": "npz", "data-file": str(file), "labels": "numbers", "user-column": "user",
        "cluster-column": "cluster", "model": "linear", "evaluate-every": 1000,
        "known-refine": 1, **keys,
    }  # fmt: skip
    result = strategy_class(strategy)(Config.parse(own)).start(LocalGrid(app, 1))
    found = result.summaries[0].estimates
    assert found is not None
    return found


def distance(found: Any, wanted: Any) -> float:
    """The largest relative difference."""
    ours, theirs = np.array(found, np.float64), np.array(wanted, np.float64)
    return float(np.max(np.abs(ours - theirs) / np.abs(theirs)))


def compared(name: str, found: dict[str, Any], wanted: Reference) -> Iterator[Measure]:
    """Variances, estimates and errors of one model."""
    ours = {one["level"]: one["variance"] for one in found["variances"]}
    theirs = {"residual": wanted.scale, "user": wanted.user, "cluster": wanted.cluster}
    parts = {
        "variances": (list(ours.values()), [theirs[level] for level in ours]),
        "estimates": ([c["estimate"] for c in found["coefficients"]], wanted.estimates),
        "errors": ([c["se"] for c in found["coefficients"]], wanted.errors),
    }
    beside = ", ".join(f"{level} {value:.4f}" for level, value in ours.items())
    for what, pair in parts.items():
        yield Measure(f"{name}: {what}", distance(*pair), TARGET, "relative", beside)


def run() -> Iterator[Measure]:
    """Random intercepts of schools, and of schools in sectors."""
    data = schools()
    with tempfile.TemporaryDirectory() as folder:
        file = written(data, Path(folder))
        z = data.x[:, -1:]
        for name, strategy, cluster in (
            ("schools", "single-cluster", None),
            ("schools in sectors", "mixed-model", data.sector),
        ):
            wanted = reference(data.x, data.y, z, data.school, cluster)
            ours = summary(strategy, file, **{"mixed-random": "intercept"})
            yield from compared(name, ours, wanted)
