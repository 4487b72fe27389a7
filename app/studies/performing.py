"""The runs of a study performed: new ones, or those that an earlier one has left."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corsage.app.output.living import Bar, Far
from corsage.app.output.summary import human_seconds
from corsage.app.studies.comparison import Study
from corsage.app.studies.folder import StudyFolder
from corsage.app.studies.grid import Grid, completed, grid_of
from corsage.app.studies.workers import Ended
from corsage.app.tracking.tracker import check_tools
from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError, CorsageError
from corsage.core.files import guarded, write_atomically


def run_study(values: Mapping[str, Any], json_file: str = "") -> Study:
    """Run a study, or what is left of one; write it down and print it."""
    from corsage.app.studies.means_table import show

    target = Path(json_file).expanduser() if json_file else None
    if target and not target.parent.is_dir():
        raise ConfigError(f"--json {json_file}: its folder does not exist.")
    study, errors = perform(dict(values))
    show(study)
    if target:
        write_json(study, str(target))
    if errors:
        raise CorsageError(
            f"{errors} of {len(study.runs) + len(study.missing)} runs failed: see above, and "
            f"{study.folder}/runs/*.log. --resume {study.folder} tries them again."
        )
    return study


def perform(values: dict[str, Any]) -> tuple[Study, int]:
    """The study of these keys, when all its runs have been tried, and how many of them failed."""
    from corsage.app.studies import workers

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
            with Progress(folder, len(jobs)) as told:
                ended = workers.play(jobs, count, told)
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
    """The number of runs at the same time; Ray uses all cores for each."""
    from corsage.app.studies.workers import workers

    asked = config.run.study_workers
    ray = config.run.engine == "ray"
    return workers(asked or int(ray), config.train.torch_threads, jobs)


def announce(grid: Grid, folder: Path, jobs: int, at_once: int) -> None:
    """Say at once what will be done."""
    between = {k: "|" if any("," in v for v in own) else "," for k, own in grid.varied.items()}
    varied = " ".join(f"{key}={between[key].join(own)}" for key, own in grid.varied.items())
    left = "" if jobs == len(grid.cells) else f", {jobs} of them to do"
    print(
        f"Study of {len(grid.cells)} runs ({varied}){left}, {at_once} at a time: {folder}",
        file=sys.stderr,
        flush=True,
    )


class Progress(Bar):
    """Says how far a study is, and of each run how it ended.

    Parameters
    ----------
    folder : the study's.
    jobs : the number of runs that are to be done.
    """

    def __init__(self, folder: StudyFolder, jobs: int) -> None:
        self.jobs, self.count, self.folder = jobs, 0, folder
        self.left_out = len(folder.grid.cells) - jobs
        super().__init__(self.so_far, folder.write_page)

    def so_far(self) -> Far:
        """Runs that are done, and parts of those at work."""
        parts = sum(part for _, part in self.folder.at_work())
        return Far(self.left_out + self.count + parts, self.left_out + self.jobs)

    def __call__(self, ended: Ended) -> None:
        """One more."""
        self.count += 1
        how = f"failed: {ended.line}" if ended.code else "done"
        took = human_seconds(ended.seconds)
        self.line(f"[{self.count}/{self.jobs}] {ended.job.name}: {how}, {took}")


def write_json(study: Study, target: str) -> None:
    """The rows and their differences, where the user wants them."""
    import json

    guarded(write_atomically, Path(target).expanduser(), json.dumps(study.json(), indent=2))
