"""A study on disk: one folder, in which each run has its own.

study.json         what is varied; at the end the rows and their differences
study.csv          one line a run and row
table.tex          the table
report.html        table, curves and what a reader must know, from the first run on
runs/NAME/         the run folder of one run: `runs/lr=0.1,seed=3`
runs/NAME.log      what its process printed
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from corsage.app.results.metrics import read_rows
from corsage.app.run.conclusion import failures, results
from corsage.app.run.endings import RESULT, read_failure
from corsage.app.run.resuming import FREE, begun, read_config
from corsage.app.run.status import STUDY, RunLock, is_running, is_study, new_folder
from corsage.app.studies.comparison import Study
from corsage.app.studies.grid import Cell, Grid, grid_of
from corsage.app.studies.over_seeds import Done
from corsage.app.studies.workers import Job
from corsage.core.configuration.command_line import each_of
from corsage.core.configuration.config import Config
from corsage.core.configuration.known_keys import idle_keys
from corsage.core.errors import CheckpointError, ConfigError
from corsage.core.files import guarded, sealed, unsealed, write_atomically
from corsage.core.measures import measure_of
from corsage.core.version import VERSION

if TYPE_CHECKING:
    from corsage.app.output.living import Far
    from corsage.app.report.now import Now

RUNS = "runs"
SAME_ROW_KEYS = FREE - {"num-rounds"} | {"seed"}
"""Keys by which runs are not told apart: they do not change what is compared, or are its seed."""


@dataclass
class StudyFolder:
    """A study's folder, which no other process may work on meanwhile; a context manager."""

    folder: Path
    grid: Grid

    def __post_init__(self) -> None:
        self._lock = RunLock(self.folder)

    @classmethod
    def begin(cls, grid: Grid) -> StudyFolder:
        """A new one."""
        config = Config.parse(grid.keys(grid.cells[0]))
        parent = Path(config.run.run_dir).expanduser()
        return cls(new_folder(parent, "study_" + "+".join(config.run.strategy)), grid)

    @classmethod
    def again(cls, folder: Path, values: Mapping[str, Any]) -> StudyFolder:
        """An earlier one, to be finished; what it varies may get more values, such as seeds."""
        stored, new = read_study(folder), grid_of(values)
        given = each_of(values)
        varied = {key: given.get(key, words) for key, words in stored["varied"].items()}
        check_again(folder, stored, new)
        base = {key: value for key, value in new.base.items() if key not in varied}
        return cls(folder, Grid({**stored["keys"], **base}, varied))

    def __enter__(self) -> StudyFolder:
        self._lock.take()
        self.write({})
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def write(self, found: Mapping[str, Any]) -> None:
        """Write what the study is, and what it has found so far."""
        content = {"corsage": VERSION, **self.grid.json(), **found}
        guarded(write_atomically, self.folder / STUDY, sealed(content), durable=True)

    def place(self, cell: Cell) -> Path:
        """A run's folder."""
        return self.folder / RUNS / (cell.name or "run")

    def jobs(self) -> list[Job]:
        """The runs that have no result yet."""
        return [
            Job.of_run(cell.name, self.place(cell), {**self.grid.json()["keys"], **cell.values})
            for cell in self.grid.cells
            if not self.finished(cell)
        ]

    def finished(self, cell: Cell) -> bool:
        """True if all strategies of a run have a result, after as many rounds as are asked for."""
        folder, config = self.place(cell), Config.parse(self.grid.keys(cell))
        return bool(begun(folder)) and not failures(folder, config)

    def study(self, missing: Mapping[str, str]) -> Study:
        """The study so far; `missing` says why runs have no result at all."""
        runs, gone = [], dict(missing)
        for cell in self.grid.cells:
            folder = self.place(cell)
            config = Config.parse(self.grid.keys(cell))
            found = results(folder, config)
            if not found:
                gone.setdefault(cell.name, "it has no result yet")
                continue
            gone.pop(cell.name, None)
            settings = {key: value for key, value in cell.values.items() if key != "seed"}
            seed = str(config.run.seed)
            failed = failures(folder, config)
            runs.append(Done(cell.name, folder, settings, seed, config_of(folder), found, failed))
        return Study(runs, self.folder, gone)

    def at_work(self) -> list[tuple[Cell, float]]:
        """The runs that a process is at work on, and how far they are."""
        found = []
        for cell in self.grid.cells:
            folder = self.place(cell)
            begun = (folder / "status.json").exists() and not (folder / "summary.json").exists()
            if begun and is_running(folder):
                config = Config.parse(self.grid.keys(cell))
                parts = [come(folder / n, config.run.num_rounds) for n in config.run.strategy]
                found.append((cell, sum(parts) / len(parts)))
        return found

    def far(self) -> Far:
        """The runs that are done."""
        from corsage.app.output.living import Far

        return Far(sum(map(self.finished, self.grid.cells)), len(self.grid.cells))

    def write_page(self, far: Far, left: float | None, seconds: float) -> None:
        """Write the page of a study that goes on."""
        from corsage.app.report.now import Now

        names = []
        for cell, part in self.at_work():
            place = f"{RUNS}/{quote(cell.name or 'run')}/report.html"
            there = (self.place(cell) / "report.html").exists()
            names.append((f"{cell.name}: {100 * part:.0f}%", place * there))
        runs = [  # what has not had its turn has not failed
            replace(
                run, failed={n: w for n, w in run.failed.items() if read_failure(run.folder / n)}
            )
            for run in self.study({}).runs
        ]
        now = Now(far.done, far.whole, "runs", left, names, seconds)
        self.page(Study(runs, self.folder), now)

    def page(self, study: Study, now: Now | None = None) -> None:
        """Write the page."""
        from corsage.app.studies.page import page

        text = page(self.folder.name, study, self.grid, now)
        guarded(write_atomically, self.folder / "report.html", text)

    def conclude(self, study: Study) -> None:
        """Write down what was found."""
        self.write({key: value for key, value in study.json().items() if key != "corsage"})
        guarded(write_atomically, self.folder / "study.csv", study.csv())
        if study.rows:
            guarded(write_atomically, self.folder / "table.tex", study.table.to_latex())
        self.page(study)

    def forget_if_nothing_began(self) -> bool:
        """Remove the folder of a study none of whose runs began, for they cannot; whether so."""
        if any((self.place(cell) / "config.json").exists() for cell in self.grid.cells):
            return False
        shutil.rmtree(self.folder, ignore_errors=True)
        return True


def come(folder: Path, rounds: int) -> float:
    """The part of a strategy's rounds that is done."""
    if (folder / RESULT).exists():
        return 1.0
    rows = read_rows(folder)
    return min(int(rows[-1]["round"]) / max(rounds, 1), 1.0) if rows else 0.0


def config_of(folder: Path) -> Config:
    """All keys of a run."""
    return Config.parse(read_config(folder)["config"])


def check_again(folder: Path, stored: Mapping[str, Any], new: Grid) -> None:
    """Refuse other keys than the study has: what is finished was not run under them."""
    before = Config.parse(stored["keys"]).flat()
    for key, value in {**new.base, **new.varied}.items():
        if key in stored["varied"] or (key in FREE and key not in new.varied):
            continue
        if key in new.varied or Config.parse({**stored["keys"], key: value}).flat() != before:
            shown = "|".join(value) if key in new.varied else value
            raise CheckpointError(
                f"{folder}: cannot be resumed with {key}={shown}: this study varies "
                f"{', '.join(stored['varied'])}; begin a new study."
            )


def read_study(folder: Path) -> dict[str, Any]:
    """The content of `study.json`."""
    try:
        stored = unsealed(folder / STUDY)
        if isinstance(stored["keys"], dict) and isinstance(stored["varied"], dict):
            return stored
    except (OSError, ValueError, KeyError):
        pass
    raise CheckpointError(
        f"{folder}: {STUDY} is damaged. Its runs are whole: corsage compare {folder / RUNS}/* "
        "shows them, and each can be finished with --resume."
    )


def there(folder: Path) -> StudyFolder:
    """An earlier study, to be read."""
    stored = read_study(folder)
    return StudyFolder(folder, Grid(stored["keys"], stored["varied"]))


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
        return list(there(folder).study({}).runs)
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
    keys = [key for key in flats[0] if key not in SAME_ROW_KEYS and key not in idle]
    unlike = [key for key in keys if len({str(flat.get(key)) for flat in flats}) > 1]
    return [{key: str(flat.get(key)) for key in unlike} for flat in flats]


def doubled(runs: Iterable[Done]) -> bool:
    """True if two runs would be the same entry of the same row."""
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
