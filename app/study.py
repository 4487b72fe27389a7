"""Studies from the command line and from Python: `corsage sweep`, `corsage compare`, `study()`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from corsage.app.output.usage import command, in_a_line
from corsage.app.run.status import is_study_of
from corsage.app.studies.comparison import Study
from corsage.app.studies.grid import Cell, Grid, grid_of
from corsage.app.studies.over_seeds import Done
from corsage.app.studies.performing import perform, run_study, write_json
from corsage.core.configuration.config import named_objects
from corsage.core.errors import FOR_ALL, UNUSABLE, ConfigError
from corsage.core.keys import kebab

SWEEP = """\
usage: corsage sweep key=value ... key=value,value ... [FILE.toml] [--json FILE]
       corsage sweep --resume STUDY [key=value ...]

  seed=0,1,2,3,4    runs the same comparison under five seeds, as many runs at a time as there are
                    cores (study-workers), and puts them in one table: mean and standard deviation
                    over seeds, differences with 95% intervals over seeds and over users
  lr=0.01,0.1       the same for any key of which a value has no comma; together they are combined
  hidden="200|64,32"  | is between the values of keys that are lists or texts themselves
  --resume STUDY    does what is left of a study; more seeds, values or num-rounds may be given
  --json FILE       also write study.json there
"""
COMPARE = """\
usage: corsage compare RUN... [--json FILE]

  RUN          a finished run's folder, or a study's. Runs that differ in nothing but their seed are
               one row; what else they differ in has a column. Of mixed models (mixed-random=...)
               the likelihood-ratio test, AIC and BIC are in a line
  --json FILE  also write the comparison there
"""


@command(SWEEP)
def sweep(words: list[str]) -> None:
    """`corsage sweep`: a study of several seeds, or of several values of keys."""
    from corsage.app.command import parse

    values, target = parse(words)
    if not is_study_of(values):
        raise ConfigError("sweep: no key has several values, such as seed=0,1,2 lr=0.01,0.1.")
    run_study(values, target)


@command(COMPARE)
def compare(words: list[str]) -> None:
    """`corsage compare`: finished runs beside each other."""
    from corsage.app.studies.folder import beside
    from corsage.app.studies.means_table import show

    folders, target = split(words)
    study = beside(folders)
    show(study)
    if target:
        write_json(study, target)


def split(words: Sequence[str]) -> tuple[list[Path], str]:
    """Folders, and the file for the comparison."""
    folders, target, rest = [], "", iter(words)
    for one in rest:
        name, _, value = one.partition("=")
        if name == "--json":
            target = value or next(rest, "")
        elif one.startswith("-"):
            raise ConfigError(f"compare: {one}: unknown. See corsage compare --help.")
        else:
            folders.append(Path(one).expanduser())
    if not folders:
        raise ConfigError("compare: name at least one run folder.")
    if away := [folder for folder in folders if not folder.is_dir()]:
        raise ConfigError(f"compare: {away[0]}: there is no such folder.")
    return folders, target


def study(
    strategies: str | Sequence[str],
    data: Any = None,
    *,
    x: Any = None,
    y: Any = None,
    user: Any = None,
    label: str | None = None,
    cluster: Any = None,
    progress: bool = True,
    **keys: Any,
) -> Study:
    """Run a study: the same comparison for several seeds, or several values of keys.

    Parameters
    ----------
    strategies : names, as a list or with commas.
    data, x, y, user, label, cluster : one's own data, as `simulate` takes them.
    progress : bool
        Say of each run that it is done.
    **keys
        Keys with `_` for `-`. One with several values is a list: `seed=[0, 1, 2]`,
        `lr=[0.01, 0.1]`, `hidden=[[64], [64, 32]]`; all combinations are run, in
        processes that stay. Files go into a folder in `run_dir`; `resume=FOLDER` does what is left
        of a study.
        With data or a model that are objects, runs are done in this process, one after the other,
        and write no files.

    Returns
    -------
    Study
        `study["fedrep"].mean`, `.sd`, `print(study)`, `.frame` for pandas, `.records()` without.
        Runs that failed are in `missing`.
    """
    from corsage.app.given import data_of

    several = isinstance(strategies, Sequence) and not isinstance(strategies, str)
    listed: list[Any] = [*strategies] if several else [strategies]
    if others := [one for one in listed if not isinstance(one, str)]:
        name = getattr(others[0], "name", repr(others[0]))
        raise ConfigError(
            f"study: {name!s:.60} is no name. An object is good for one run, and a study has "
            "several: name the strategy, and give its keys beside the others."
        )
    named = ",".join(listed)
    given = data_of(data, (x, y), {"user": user, "label": label, "cluster": cluster}, keys)
    found, objects = named_objects({kebab(n): v for n, v in given.among(keys).items()})
    if given.held or objects:
        return study_here(named, found, progress)
    return perform({**found, "strategy": named})[0]


def study_here(strategies: str, values: Mapping[str, Any], progress: bool) -> Study:
    """Every run of a study, one after the other; one that fails does not end the others."""
    from corsage.app.output.living import Bar, Far
    from corsage.app.output.notebook import calm_log
    from corsage.app.output.progress import is_tty
    from corsage.app.output.summary import human_seconds

    grid = grid_of({**values, "strategy": strategies})
    grid.check()
    runs: list[Done] = []
    missing: dict[str, str] = {}
    bar = Bar(lambda: Far(len(runs) + len(missing), len(grid.cells)))
    with bar if progress else nullcontext(), calm_log(watched=is_tty(sys.stderr)):
        for number, cell in enumerate(grid.cells, 1):
            begun, how = time.monotonic(), "done"
            try:
                runs.append(done_here(grid, cell))
            except FOR_ALL:
                raise
            except Exception as error:
                if isinstance(error, UNUSABLE) and number == 1:
                    raise
                missing[cell.name] = in_a_line(error)
                how = f"failed: {missing[cell.name]}"
            if progress:
                took = human_seconds(time.monotonic() - begun)
                bar.line(f"[{number}/{len(grid.cells)}] {cell.name}: {how}, {took}")
    return Study(runs, None, missing)


def done_here(grid: Grid, cell: Cell) -> Done:
    """One run, as a study's folder would have it."""
    from corsage.app.given import NOTHING_GIVEN
    from corsage.app.simulation import compared, prepared

    keys = {name.replace("-", "_"): value for name, value in grid.keys(cell).items()}
    strategies = prepared([str(keys.pop("strategy"))], NOTHING_GIVEN, keys, progress=False)
    config = strategies[0].config
    found = compared(strategies, progress=False)
    failed = {name: in_a_line(error) for name, error in found.failed.items()}
    results = [summary.json() for summary in found.summaries]
    settings = {key: value for key, value in cell.values.items() if key != "seed"}
    seed = str(config.run.seed)
    return Done(cell.name or "run", Path(), settings, seed, config, results, failed)
