"""Finished runs, and studies, put beside each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from corsage.app.run.conclusion import failures, results
from corsage.app.run.resuming import FREE
from corsage.app.run.status import is_study
from corsage.app.studies.folder import StudyFolder, config_of, read_study
from corsage.app.studies.grid import Grid
from corsage.app.studies.rows import Done
from corsage.app.studies.study import Study
from corsage.core.configuration.known_keys import idle_keys
from corsage.core.errors import ConfigError
from corsage.core.measures import measure_of

ALONE = FREE - {"num-rounds"} | {"seed"}
"""Keys by which runs are not told apart: they do not change what is compared, or are its seed."""


def beside(folders: Sequence[Path]) -> Study:
    """One study of all these runs: those that differ in their seed alone are one row."""
    runs = [run for folder in folders for run in runs_of(folder)]
    settings = differing(runs)
    told = [replace(run, settings=own) for run, own in zip(runs, settings, strict=True)]
    if doubled(told):
        names = unlike_names([run.folder for run in told])
        told = [
            replace(run, settings={**run.settings, "run": name})
            for run, name in zip(told, names, strict=True)
        ]
    measures = {measure_of(found).name for run in told for found in run.results}
    if len(measures) > 1:
        raise ConfigError(
            f"compare: these runs are judged by {' and by '.join(sorted(measures))}: compare those "
            "of one measure."
        )
    return Study(told)


def runs_of(folder: Path) -> list[Done]:
    """The runs of a folder: itself, or those of a study."""
    if is_study(folder):
        stored = read_study(folder)
        return list(StudyFolder(folder, Grid(stored["keys"], stored["varied"])).study({}).runs)
    config = config_of(folder)
    found = results(folder, config)
    if not found:
        raise ConfigError(f"{folder}: has no result yet: finish it with --resume {folder}.")
    failed = failures(folder, config)
    return [Done(folder.name, folder, {}, str(config.run.seed), config, found, failed)]


def differing(runs: Sequence[Done]) -> list[dict[str, str]]:
    """The keys in which each run differs from others, but for its seed and its strategies."""
    names = {name for run in runs for name in run.config.run.strategy}
    flats: list[dict[str, Any]] = [run.config.flat() for run in runs]
    idle = idle_keys(names)
    keys = [key for key in flats[0] if key not in ALONE and key not in idle]
    unlike = [key for key in keys if len({str(flat.get(key)) for flat in flats}) > 1]
    return [{key: str(flat.get(key)) for key in unlike} for flat in flats]


def doubled(runs: Iterable[Done]) -> bool:
    """Whether two runs would be the same entry of the same row."""
    places = Counter(
        (tuple(run.settings.items()), run.seed, found["strategy"])
        for run in runs
        for found in run.results
    )
    return any(count > 1 for count in places.values())


def unlike_names(folders: Sequence[Path]) -> list[str]:
    """The folders' names, with so much of what is above them that no two are the same."""
    for depth in range(1, 9):
        names = ["/".join(folder.resolve().parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]
