"""Studies from the command line and from Python: `corsage sweep`, `corsage compare`, `study()`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corsage.app.output.complaint import exit_code
from corsage.app.studies.grid import Grid, completed, grid_of, is_study_of
from corsage.app.studies.study import Study
from corsage.app.tracking.tools import check_tools
from corsage.core.configuration.config import Config, named_objects
from corsage.core.errors import ConfigError, CorsageError
from corsage.core.files import guarded, write_atomically
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
               one row; what else they differ in has a column
  --json FILE  also write the comparison there
"""


def sweep(words: list[str]) -> int:
    """`corsage sweep`: a study of several seeds, or of several values of keys."""
    from corsage.app.command import parse

    def work() -> None:
        values, target = parse(words)
        if not is_study_of(values):
            raise ConfigError("sweep: no key has several values, such as seed=0,1,2 lr=0.01,0.1.")
        run_study(values, target)

    return told(words, SWEEP, work)


def compare(words: list[str]) -> int:
    """`corsage compare`: finished runs beside each other."""
    from corsage.app.studies.beside import beside
    from corsage.app.studies.table import show

    def work() -> None:
        folders, target = split(words)
        study = beside(folders)
        show(study)
        if target:
            write_json(study, target)

    return told(words, COMPARE, work)


def told(words: list[str], usage: str, work: Any) -> int:
    """Help, or the work; every expected error is one line."""
    if {"-h", "--help"} & set(words):
        print(usage, end="")
        return 0
    return exit_code(work)


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


def run_study(values: Mapping[str, Any], json_file: str = "") -> Study:
    """Run a study, or what is left of one; write it down and print it."""
    from corsage.app.studies.table import show

    target = Path(json_file).expanduser() if json_file else None
    if target and not target.parent.is_dir():
        raise ConfigError(f"--json {json_file}: its folder does not exist.")
    study, errors = done(dict(values))
    show(study)
    if target:
        write_json(study, str(target))
    if errors:
        raise CorsageError(
            f"{errors} of {len(study.runs) + len(study.missing)} runs failed: see above, and "
            f"{study.folder}/runs/*.log. --resume {study.folder} tries them again."
        )
    return study


def done(values: dict[str, Any]) -> tuple[Study, int]:
    """The study of these keys, when all its runs have been tried, and how many of them failed."""
    from corsage.app.studies import workers
    from corsage.app.studies.folder import StudyFolder

    resume = Path(str(values.pop("resume", ""))).expanduser() if values.get("resume") else None
    if not resume:
        values, line = completed(values)
        if line:
            print(line, file=sys.stderr)
        grid = grid_of(values)
        grid.check()
        check_data(grid)
    made = StudyFolder.again(resume, values) if resume else StudyFolder.begin(grid)
    made.grid.check()
    with made as folder:
        jobs = folder.jobs()
        count = at_once(Config.parse(folder.grid.keys(folder.grid.cells[0])), len(jobs))
        announce(folder.grid, folder.folder, len(jobs), count)
        try:
            ended = workers.play(jobs, count, Counter(len(jobs)))
        except BaseException:
            print(f"The study can be finished: --resume {folder.folder}", file=sys.stderr)
            raise
        wrong = [one for one in ended if one.code]
        if wrong and not resume and folder.forget_if_nothing_began():
            raise ConfigError(wrong[0].line)
        study = folder.study({one.job.name: one.line for one in wrong})
        folder.conclude(study)
    return study, len(wrong)


def check_data(grid: Grid) -> None:
    """Prepare the data of the first run: what is wrong is known before a folder is made.

    And what is prepared once need not be prepared by several runs at the same time.
    """
    from corsage.datasets.dealing.federated import check_users, simulated

    config = Config.parse(grid.keys(grid.cells[0]))
    check_tools(config.run.log_to)
    check_users(simulated(config.data, config.federation.num_users, config.run.seed))


def at_once(config: Config, jobs: int) -> int:
    """How many runs go on at the same time; Ray uses all cores for each."""
    from corsage.app.studies.workers import workers

    asked = config.run.study_workers
    ray = config.run.engine == "ray"
    return workers(asked or int(ray), config.train.torch_threads, jobs)


def announce(grid: Grid, folder: Path, jobs: int, at_once: int) -> None:
    """What will be done, at once."""
    varied = " ".join(f"{key}={','.join(values)}" for key, values in grid.varied.items())
    left = "" if jobs == len(grid.cells) else f", {jobs} of them to do"
    print(
        f"Study of {len(grid.cells)} runs ({varied}){left}, {at_once} at a time: {folder}",
        file=sys.stderr,
        flush=True,
    )


class Counter:
    """Says of each run how it ended."""

    def __init__(self, jobs: int) -> None:
        self.jobs, self.count = jobs, 0

    def __call__(self, ended: Any) -> None:
        """One more."""
        from corsage.app.output.summary import human_seconds

        self.count += 1
        how = f"failed: {ended.line}" if ended.code else "done"
        text = f"[{self.count}/{self.jobs}] {ended.job.name}: {how}, {human_seconds(ended.seconds)}"
        print(text, file=sys.stderr, flush=True)


def write_json(study: Study, target: str) -> None:
    """The rows and their differences, where the user wants them."""
    import json

    guarded(write_atomically, Path(target).expanduser(), json.dumps(study.json(), indent=2))


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
        `lr=[0.01, 0.1]`; all combinations are run, each in a process of its own. Files go into a
        folder in `run_dir`; `resume=FOLDER` does what is left of a study. With data or a model that
        are objects, runs are done in this process, one after the other, and write no files.

    Returns
    -------
    Study
        `study["fedrep"].mean`, `.sd`, `print(study)`, `.frame` for pandas, `.records()` without.
        Runs that failed are in `missing`.
    """
    from corsage.app.given import data_of
    from corsage.app.studies.here import study_here

    listed = [strategies] if isinstance(strategies, str) else list(strategies)
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
    return done({**found, "strategy": named})[0]
