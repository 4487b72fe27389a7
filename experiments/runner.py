"""Strategies run for several seeds in this process: what all experiments are made of."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corsage.app.client_app import app
from corsage.app.engines import number_of_nodes
from corsage.app.local_grid import LocalGrid
from corsage.app.output.progress import Watcher
from corsage.core.configuration.config import Config
from corsage.core.files import write_atomically
from corsage.core.keys import kebab
from corsage.experiments.measured import fingerprint
from corsage.strategies import strategy_class

Results = dict[str, list[dict[str, Any]]]
"""The results of each strategy, one a seed: the same place is the same users and draws."""


def run(
    strategies: Sequence[str], seeds: Sequence[int], kept: Path | None = None, **keys: Any
) -> Results:
    """Run each strategy for each seed; `keys` are config keys (`num_users=100`).

    What a strategy reports beside itself is there under its own name (`fedavg+ft`). The results
    are those of the summary, with the seed and the CPU seconds of training and evaluation. Each
    strategy does the work that its keys say (`work=as-set`), as in the papers. What was measured
    is kept as a file a run in a folder `kept`, and read from there when it is asked for again.
    """
    found: Results = {}
    for seed in seeds:
        values = {kebab(name): value for name, value in keys.items()}
        config = Config.parse(
            {"work": "as-set", **values, "seed": seed, "strategy": list(strategies)}
        )
        for name in config.run.strategy:
            for result in run_kept(name, config, kept) if kept else run_one(name, config):
                found.setdefault(result["strategy"], []).append(result)
    return found


def run_kept(name: str, config: Config, folder: Path) -> list[dict[str, Any]]:
    """The same as it was kept, or run."""
    path = folder / f"{name}-{fingerprint(config)}.json"
    if not path.is_file():
        found = run_one(name, config)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(found))
    rows: list[dict[str, Any]] = json.loads(path.read_text())
    return rows


def run_one(name: str, config: Config) -> list[dict[str, Any]]:
    """One strategy for one seed: its result, and those that it reports beside."""
    grid = LocalGrid(app, number_of_nodes(config))
    strategy = strategy_class(name)(config, [Watcher(config.run.num_rounds)])
    start = time.process_time()
    summaries = strategy.start(grid).json()
    seconds = round(time.process_time() - start, 3)
    return [{**row, "seed": config.run.seed, "cpu_seconds": seconds} for row in summaries]


def percents(results: Results, name: str) -> tuple[float, ...]:
    """A strategy's accuracy in percent, one a seed: the mean of the last ten rounds.

    Where there is one evaluation only (`fedavg+ft`), it is that one.
    """
    return tuple(100 * row["accuracy_last10"] for row in results[name])


def differences(results: Results, one: str, other: str) -> tuple[float, ...]:
    """Points of accuracy by which `one` is above `other`, paired by seed."""
    pairs = zip(percents(results, one), percents(results, other), strict=True)
    return tuple(a - b for a, b in pairs)


def compact(results: Results, case: str) -> list[dict[str, Any]]:
    """All results of a case as rows for the JSON file, without the users one by one."""
    return [
        {"case": case, **{key: value for key, value in row.items() if key != "per_user"}}
        for rows in results.values()
        for row in rows
    ]


def say(text: str) -> None:
    """A line on what comes now, above the progress."""
    print(text, file=sys.stderr, flush=True)
