"""Tables as they come, raw and with the default keys: what is learnt, and how fast they are read.

The data sets are scikit-learn's, their rows dealt to eight sites by chance, in files of their own
units. Each result is the mean over five such deals: a site has some ten to fifteen test rows, so
one deal alone may be off by two points.
"""

from __future__ import annotations

import csv
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from corsage.app.simulation import simulate
from corsage.benchmarks.measure import Measure
from corsage.datasets.data_set import load_table
from corsage.datasets.shared_keys import CsvKeys

SITES, DEALS = 8, 5
METHODS = "fedrep,fedavg,local"
CELLS = (200_000, 50)
"""Rows and columns of the file that is read for time."""
TARGETS = {
    ("breast-cancer", "fedrep"): 93.0,
    ("breast-cancer", "fedavg"): 98.0,
    ("diabetes", "fedrep"): 60.0,
}
"""Percent right, and RMSE."""


def run() -> Iterator[Measure]:
    """All measures."""
    with tempfile.TemporaryDirectory() as folder:
        yield from learnt(Path(folder))
        yield reading(Path(folder))


def learnt(folder: Path) -> Iterator[Measure]:
    """What methods learn of four tables."""
    for name, numbers in (("breast-cancer", False), ("wine", False), ("iris", False),
                          ("diabetes", True)):  # fmt: skip
        scores = [scores_of(folder, name, numbers, deal) for deal in range(DEALS)]
        for row in scores[0]:
            values = [one[row] for one in scores]
            target = TARGETS.get((name, row))
            unit = "RMSE" if numbers else "% right"
            each = ", ".join(f"{value:.1f}" for value in values)
            merit = not numbers
            yield Measure(f"{name}: {row}", float(np.mean(values)), target, unit, each, merit)


def scores_of(folder: Path, name: str, numbers: bool, deal: int) -> dict[str, float]:
    """The table's rows under the default keys."""
    path = write(folder / f"{name}-{deal}.csv", *rows_of(name), deal)
    more: dict[str, Any] = {"labels": "numbers"} if numbers else {}
    found = simulate(
        METHODS, progress=False, dataset="csv", data_file=str(path), user_column="site",
        cache_dir=str(folder / "cache"), **more,
    )  # fmt: skip
    factor = 1.0 if numbers else 100.0
    return {row: factor * found[row].score.mean for row in found}


def rows_of(name: str) -> tuple[Any, Any, Sequence[str]]:
    """Inputs, labels and names of the columns, in their own units."""
    from sklearn import datasets

    own = {"scaled": False} if name == "diabetes" else {}
    data = getattr(datasets, f"load_{name.replace('-', '_')}")(**own)
    return data.data, data.target, list(data.feature_names)


def write(path: Path, x: Any, y: Any, names: Sequence[str], deal: int) -> Path:
    """A file of rows that are dealt to sites by chance."""
    sites = np.random.default_rng(deal).integers(0, SITES, len(y))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["site", "label", *names])
        rows = zip(sites.tolist(), y.tolist(), x.tolist(), strict=True)
        writer.writerows([f"s{site}", label, *row] for site, label, row in rows)
    return path


def reading(folder: Path) -> Measure:
    """Seconds to read a large file of numbers, beside numpy's own reader."""
    x = np.random.default_rng(0).normal(size=CELLS)
    y = (x[:, 0] > 0).astype(np.int64)
    path = write(folder / "large.csv", x, y, [f"x{i}" for i in range(CELLS[1])], 0)
    begin = time.process_time()
    load_table(CsvKeys(dataset="csv", data_file=str(path), user_column="site"))
    middle = time.process_time()
    np.loadtxt(path, np.float64, delimiter=",", skiprows=1, usecols=range(1, CELLS[1] + 2))
    bare = time.process_time() - middle
    megabytes = path.stat().st_size / 1e6
    beside = f"{megabytes:.0f} MB; numpy alone {bare:.1f} CPU s"
    return Measure("reading a large file", (middle - begin) / bare, 1.5, "of numpy's", beside)
