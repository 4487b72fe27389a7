"""`mixed-model` with its strengths estimated, by how many columns a table has: CPU seconds.

Users of known clusters with records of standard normal columns. Coefficients differ between
clusters and users; a user has fewer records than coefficients, or more. Each time is that of a
whole run in this process, shapes chosen and neighbours compared, without intervals and imports.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.benchmarks.measure import Measure
from corsage.benchmarks.mixed_models import Records, written
from corsage.core.configuration.config import Config
from corsage.core.seeding import generator
from corsage.strategies import strategy_class


class Table(NamedTuple):
    """How large a table is, and how many CPU seconds a run of it may take."""

    columns: int
    users: int
    clusters: int
    records: int
    target: float


TABLES = (
    Table(11, 250, 5, 20, 1.0),
    Table(8, 2000, 20, 50, 1.5),
    Table(8, 40_000, 20, 50, 4.0),
    Table(5, 50, 5, 20, 1.0),
    Table(10, 500, 10, 40, 2.0),
    Table(20, 200, 5, 40, 5.0),
    Table(100, 50, 5, 20, 10.0),
    Table(100, 50, 5, 150, 10.0),
    Table(300, 50, 5, 20, 20.0),
)
FIRST = Table(2, 6, 2, 10, 0.0)
"""Imports are over after it."""


def drawn(table: Table) -> Records:
    """A table; where users have few records their coefficients differ less."""
    rng = generator(0, "wide-tables")
    d = table.columns + 1
    sizes = rng.integers(table.records // 2, table.records * 3 // 2 + 1, table.users)
    user = np.repeat(np.arange(table.users), sizes)
    cluster = np.sort(rng.integers(0, table.clusters, table.users))
    x = np.column_stack([rng.normal(size=(len(user), d - 1)), np.ones(len(user))])
    size = 1.0 if table.records > table.columns else 0.1
    centres = rng.normal(size=d) + 0.3 * size * rng.normal(size=(table.clusters, d))
    own = size * np.geomspace(0.1, 0.6, d) * rng.normal(size=(table.users, d))
    theta = centres[cluster] + own
    y = np.sum(x * theta[user], axis=1) + rng.normal(size=len(user))
    return Records(x, y, user, cluster[user])


def seconds(table: Table, folder: Path) -> float:
    """CPU seconds of a run."""
    keys = {
        "dataset": "npz", "data-file": str(written(drawn(table), folder)), "labels": "numbers",
        "user-column": "user", "cluster-column": "cluster", "model": "linear",
        "evaluate-every": 1000, "known-refine": 1, "mixed-intervals": "never",
    }  # fmt: skip
    config = Config.parse(keys)
    begin = time.process_time()
    strategy_class("mixed-model")(config).start(LocalGrid(app, 1))
    return time.process_time() - begin


def run() -> Iterator[Measure]:
    """All tables."""
    with tempfile.TemporaryDirectory() as folder:
        seconds(FIRST, Path(folder))
        for table in TABLES:
            name = f"{table.columns} columns, {table.users} users of {table.records} records"
            taken = seconds(table, Path(folder))
            beside = f"{table.clusters} clusters; known-refine=1"
            yield Measure(name, taken, table.target, "CPU s", beside)
