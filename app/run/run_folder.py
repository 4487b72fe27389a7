"""The run folder: one folder a run, with all that it leaves behind and all it needs to go on.

config.json              the resolved configuration
summary.json             the results, as `--json` writes them
report.html, figures/    what to look at, from the first round on
lock.json                the process that is at work on it, while there is one
training-path.json       how nodes train the model, where that was measured
status.json              whether it runs, has finished or failed, and why (app/run/status.py)
held-out.json            scores that were found before models were fitted to all rows
STRATEGY/metrics.jsonl   one line a round
STRATEGY/checkpoint-*    the whole state of the server after a round, of the last few
STRATEGY/result.json     its results, when it is done
STRATEGY/failure.json    why it failed, if it did
STRATEGY/model.safetensors  the shared arrays at the end
STRATEGY/models/ROW.safetensors  every user's model, of a row of the table
users.csv, clusters.csv, coefficients.csv, statistics.csv  what a spreadsheet can read
STRATEGY/users/          what simulated users keep for themselves (on devices: their state-dir)
"""

from __future__ import annotations

import shutil
import sys
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corsage.app.output.progress import watcher
from corsage.app.output.remarks import Remarks
from corsage.app.results.known_models import note_model
from corsage.app.run.checkpoint import found, go_back
from corsage.app.run.conclusion import conclude
from corsage.app.run.endings import FAILURE, HELD_OUT, RESULT, Attempts, has_models, read_result
from corsage.app.run.page_writer import Living
from corsage.app.run.recorder import Recorder, path_of
from corsage.app.run.resuming import (
    EMPTY_FOLDER,
    begun,
    check_rounds,
    check_same,
    description,
    identity,
    is_text_of,
    known_data,
    marks,
    not_a_run,
    read_config,
    spelled,
    text_of,
)
from corsage.app.run.status import RunLock, group_of, new_folder
from corsage.core.configuration.config import Config
from corsage.core.errors import UNUSABLE, CannotResume, CheckpointError, StatesGone
from corsage.core.files import clear_temporaries, delete, guarded, write_atomically
from corsage.core.registry import attached
from corsage.core.version import VERSION, warn_if_untested
from corsage.strategies import strategy_class
from corsage.strategies.effort import with_budget
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.callbacks import Callback

if TYPE_CHECKING:
    from corsage.app.tracking.tracker import Trackers

AnyStrategy = Strategy[Any, Any]


class RunFolder:
    """One run on disk, which no other process may work on; a context manager for the time of it.

    Parameters
    ----------
    folder, run : where it is, and its name at the nodes.
    config : all keys.
    lock : is held, until the end.
    simulated : the users' states are in this folder too.
    text : what config.json is to say once a resumed run goes on.
    fresh : the run was begun here and now, not resumed.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        config: Config,
        lock: RunLock,
        simulated: bool,
        text: str,
        fresh: bool = False,
    ) -> None:
        self.folder, self.run, self.config = folder, run, config
        self.lock, self.simulated, self.text = lock, simulated, text
        self.attempts = Attempts(folder, alone=len(config.run.strategy) == 1)
        self.fresh = fresh
        self.living = Living(folder)
        self.trackers: Trackers | None = None
        if tools := config.run.log_to:
            self.trackers = attached("tracking").Trackers(tools, folder, group_of(folder))

    @classmethod
    def open(cls, config: Config, nodes: int = 0, at: Path | None = None) -> RunFolder:
        """A new folder, or with `resume` the one of an earlier run; CheckpointError if it is busy.

        Parameters
        ----------
        nodes : how many a simulation has; its users' states are in this folder too.
        at : where a new one is to be; by default in `run-dir`, named by time and strategies.
        """
        if config.run.log_to:
            attached("tracking").check_tools(config.run.log_to)
        config = with_budget(config)  # stays the run's, whatever strategies come later
        note_model(config.model.model)
        folder = run_folder(config, at)
        lock = RunLock(folder)
        lock.take()
        try:
            run, text = (resume if config.run.resume else begin)(folder, config)
        except BaseException:
            lock.release()
            if not config.run.resume:  # nothing was begun
                shutil.rmtree(folder, ignore_errors=True)
            raise
        fresh = not config.run.resume
        keys = replace(config.run, resume="", from_round=-1)
        federation = replace(config.federation, num_nodes=nodes or config.federation.num_nodes)
        config = replace(config, run=keys, federation=federation)
        return cls(folder, run, config, lock, nodes > 0, text, fresh)

    def __enter__(self) -> RunFolder:
        warn_if_untested()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.trackers is not None:
            self.trackers.close()
        self.lock.release()
        if isinstance(error, UNUSABLE):
            self.leave_nothing()
        elif kind is not None and not self.attempts.in_vain:
            self.living.stop()
            print(f"The run can be finished: --resume {self.folder}", file=sys.stderr)

    def leave_nothing(self) -> None:
        """Take the folder away again, if it is of a new run that never had a round."""
        ended = any((self.folder / name / RESULT).exists() for name in self.config.run.strategy)
        if self.fresh and not ended and not begun(self.folder):
            shutil.rmtree(self.folder, ignore_errors=True)

    def unfinished(self) -> list[str]:
        """The strategies that have no result yet, or one that is damaged or of fewer rounds."""
        names, rounds = self.config.run.strategy, self.config.run.num_rounds
        return [name for name in names if not is_done(self.folder / name, rounds)]

    def strategy(self, name: str) -> AnyStrategy:
        """A strategy that writes into this folder; ConfigError if its keys cannot be meant."""
        strategy: AnyStrategy = strategy_class(name)(
            self.config, self.callbacks(name), self.experiment(name)
        )
        strategy.job.state_dir = self.state_dir(name)
        strategy.members.simulated = self.simulated
        strategy.job.training_path = path_of(self.folder)
        if not self.fresh:
            strategy.job.built.data = known_data(self.folder)
        return strategy

    def older(self, name: str, error: StatesGone) -> AnyStrategy:
        """The strategy as of an older checkpoint, if the newest names states that are not there."""
        folder = self.folder / name
        rounds = [number for number, _ in found(folder)]
        if len(rounds) < 2:
            raise CheckpointError(
                f"{folder}: {str(error).rstrip('.')}; no checkpoint is left whose states are "
                "there. Put a copy of users/ back, or begin this strategy anew: --from-round 0."
            ) from error
        go_back(folder, rounds[-2])
        print(f"{name}: {error} The run goes back to round {rounds[-2]}.", file=sys.stderr)
        return self.strategy(name)

    def goes_on(self) -> None:
        """Write down the keys of a resumed run: its data fit, so it is not refused any more."""
        text, self.text = self.text, ""
        if text and not is_text_of(path := self.folder / "config.json", text):
            guarded(write_atomically, path, text, durable=True)

    def conclude(self) -> None:
        """Summary, report and table; StrategiesFailed if a strategy has no result."""
        asked = len(self.config.run.strategy)
        self.attempts.raise_if_nothing_is_left(asked)
        self.goes_on()
        conclude(self.folder, self.config, self.attempts.times(resumed=not self.fresh))
        self.living.page = None  # what is there now is the report
        if self.trackers is not None:
            self.trackers.close(self.folder / "report.html")
        self.attempts.raise_at_the_end(asked)

    def experiment(self, name: str) -> str:
        """The name under which users keep their personal state."""
        return f"{name}-{self.run}"

    def state_dir(self, name: str) -> str:
        """The folder in which simulated users keep their personal state."""
        return str((self.folder / name / "users").resolve())

    def callbacks(self, name: str) -> list[Callback]:
        """Checkpoints and metrics, a progress line, remarks, and tools that are told of it."""
        own = identity(self.run, name, self.config.flat())
        recorder = Recorder(self.folder / name, own, self.config, self.goes_on)
        several = self.config.run.strategy
        remarks = Remarks(several if name == several[0] else ())
        found: list[Callback] = [recorder, self.living, watcher(self.config), remarks]
        return [*found, *(self.trackers.of(name) if self.trackers is not None else ())]


def is_done(folder: Path, rounds: int) -> bool:
    """True if a strategy has its results, and the models that these are of."""
    return read_result(folder, rounds) is not None and has_models(folder)


def run_folder(config: Config, at: Path | None = None) -> Path:
    """The folder of the run that is resumed, or one that nobody else has."""
    if at and not config.run.resume:
        guarded(at.mkdir, parents=True, exist_ok=True)
        return at
    if not config.run.resume:
        if config.run.from_round >= 0:
            raise CannotResume("from-round: say which run goes back: --resume RUN_FOLDER.")
        return new_folder(Path(config.run.run_dir).expanduser(), "+".join(config.run.strategy))
    folder = Path(config.run.resume).expanduser()
    if not (folder / "config.json").exists() and not begun(folder):
        raise not_a_run(folder, EMPTY_FOLDER)
    return folder


def begin(folder: Path, config: Config) -> tuple[str, str]:
    """Write down what a new run is; its name at the nodes, and no more to write."""
    run = uuid.uuid4().hex[:12]
    text = text_of(description(run, VERSION, config))
    guarded(write_atomically, folder / "config.json", text, durable=True)
    if not config.data.test_fraction and not (folder / HELD_OUT).exists():
        guarded(write_atomically, folder / HELD_OUT, "{}")
    return run, ""


def resume(folder: Path, config: Config) -> tuple[str, str]:
    """Make a run folder ready to go on; its run's name at the nodes, and what it is by now."""
    stored = read_config(folder)
    check_same(folder, stored["config"], config.flat())
    check_forgotten(folder, stored, config)
    for place in (folder, *(path for path in folder.iterdir() if path.is_dir())):
        guarded(clear_temporaries, place)
    if config.run.from_round >= 0:
        guarded(turn_back, folder, config)
    check_rounds(folder, config.run.strategy, config.run.num_rounds)
    run: str = stored["run"]
    return run, text_of({**marks(stored), **description(run, VERSION, config)})


def check_forgotten(folder: Path, stored: Mapping[str, Any], config: Config) -> None:
    """Refuse to train where a user was forgotten: the data still have it."""
    going_back = config.run.from_round >= 0
    open_ones = [n for n in config.run.strategy if not is_done(folder / n, config.run.num_rounds)]
    if marks(stored) and (open_ones or going_back):
        raise CannotResume(
            f"{folder}: users were forgotten here, and the data set has them still: nothing more "
            "can be trained in it. Take them out of the data and start a new run."
        )


def turn_back(folder: Path, config: Config) -> None:
    """Forget the rounds after `from-round` of the strategies that have no result.

    Of all strategies that are asked for, if each has one. One that has not come so far stays where
    it is.
    """
    number, asked = config.run.from_round, config.run.strategy
    open_ones = [n for n in asked if read_result(folder / n, config.run.num_rounds) is None]
    later = {
        name: rounds
        for name in open_ones or asked
        if (rounds := [r for r, _ in found(folder / name)]) and (rounds[-1] > number or not number)
    }
    for name, rounds in later.items():
        if number not in (0, *rounds):
            raise CannotResume(
                f"{folder}: from-round={number}: of {name} the rounds {spelled({0, *rounds})} "
                "are kept."
            )
    for name in later:
        go_back(folder / name, number)
        delete(folder / name / RESULT, folder / name / FAILURE)
        if not number and (folder / name / "users").is_dir():
            shutil.rmtree(folder / name / "users")  # nobody has trained yet
