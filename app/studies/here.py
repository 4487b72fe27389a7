"""A study of what is in this process: one's own data or model, run after run, without files."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corsage.app.given import NONE
from corsage.app.output.notebook import calm_log
from corsage.app.output.progress import is_tty
from corsage.app.output.summary import human_seconds
from corsage.app.run.endings import in_a_line
from corsage.app.simulation import compared, prepared
from corsage.app.studies.grid import Cell, Grid, grid_of
from corsage.app.studies.rows import Done
from corsage.app.studies.study import Study
from corsage.core.errors import FOR_ALL, UNUSABLE


def study_here(strategies: str, values: Mapping[str, Any], progress: bool) -> Study:
    """Every run of a study, one after the other; one that fails does not end the others."""
    grid = grid_of({**values, "strategy": strategies})
    grid.check()
    runs: list[Done] = []
    missing: dict[str, str] = {}
    with calm_log(watched=is_tty(sys.stderr)):
        for number, cell in enumerate(grid.cells, 1):
            begun, how = time.monotonic(), "done"
            try:
                runs.append(done(grid, cell))
            except FOR_ALL:
                raise
            except Exception as error:
                if isinstance(error, UNUSABLE) and number == 1:
                    raise
                missing[cell.name] = in_a_line(error)
                how = f"failed: {missing[cell.name]}"
            if progress:
                took = human_seconds(time.monotonic() - begun)
                print(f"[{number}/{len(grid.cells)}] {cell.name}: {how}, {took}", file=sys.stderr)
    return Study(runs, None, missing)


def done(grid: Grid, cell: Cell) -> Done:
    """One run, as a study's folder would have it."""
    keys = {name.replace("-", "_"): value for name, value in grid.keys(cell).items()}
    strategies = prepared([str(keys.pop("strategy"))], NONE, keys, progress=False)
    config = strategies[0].config
    found = compared(strategies, progress=False)
    failed = {name: in_a_line(error) for name, error in found.failed.items()}
    results = [summary.json() for summary in found.summaries]
    settings = {key: value for key, value in cell.values.items() if key != "seed"}
    seed = str(config.run.seed)
    return Done(cell.name or "run", Path(), settings, seed, config, results, failed)
