"""Trackers hand a run's numbers to another tool, round by round: the base of all that do.

A tool that fails is named once and told no more; the run goes on. When the run is resumed, it is
told what it has missed, out of `metrics.jsonl`. The key `log-to` names tools.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from corsage.app.output.usage import in_a_line
from corsage.app.results.metrics import read_rows
from corsage.core.configuration.known_keys import idle_keys
from corsage.core.errors import ConfigError, line
from corsage.core.keys import Value
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.callbacks import Callback
from corsage.strategies.rounds.results import Summary

NOT_TOLD = {"resume", "from-round", "run-dir", "cache-dir", "log-to"}
"""Keys that say nothing of the numbers."""
Numbers = Mapping[str, float]
ROW_NUMBERS = (
    "worst10",
    "loss",
    "users",
    "never_drawn",
    "gradient_steps",
    "bytes_up",
    "bytes_down",
    "messages",
    "seconds",
)
"""What is told of a row of the table beside its measures."""


@dataclass(frozen=True)
class Part:
    """What a tool is told of: one strategy of a run.

    Parameters
    ----------
    strategy, experiment : its name, and one that no other run has: `fedrep-3f2a90c81b44`.
    keys : those that mean something to it.
    title, group : what people are shown; those of a comparison or a study have one group.
    folder : its own, if it has one.
    measures : what users are judged by.
    """

    strategy: str
    experiment: str
    keys: Mapping[str, Value]
    title: str
    group: str
    folder: Path | None
    measures: tuple[str, ...]


class Tracker(Callback):
    """Hands numbers on: `FedRep(callbacks=[TensorBoard("logs")])`; subclasses know the tool.

    Parameters
    ----------
    folder : where a tool that writes files writes them, in a folder for each strategy.
    """

    name = ""

    def __init__(self, folder: Path | str = "") -> None:
        self.folder = Path(folder) if str(folder) else None
        self.own: Path | None = None  # of one strategy, in a run folder
        self.title = self.group = ""
        self._open = self._ended = self._failed = False
        self._known = 0
        self.note: Callable[[str], None] = print

    # What a tool must be able to do.

    def begin(self, part: Part) -> int:
        """Begin, or go on; the last round that it knows already."""
        raise NotImplementedError

    def log(self, number: int, values: Numbers) -> None:
        """The numbers of a round."""
        raise NotImplementedError

    def finish(self, number: int, rows: Mapping[str, Numbers]) -> None:
        """The rows of the table, by name, after the last round."""
        raise NotImplementedError

    def leave(self, report: Path | None, ended: bool) -> None:
        """Nothing more comes; the report if there is one, and whether there are results."""

    # When it is told.

    def on_start(self, strategy: Strategy[Any, Any]) -> None:
        """Begin, and tell what was missed."""
        self.close()
        self.note = strategy.job.note.warn
        self._open, self._ended, self._failed = True, False, False
        self._safely(lambda: self._begin(strategy))

    def on_round_end(self, strategy: Strategy[Any, Any], row: dict[str, Any]) -> None:
        """A round that is done."""
        self._safely(lambda: self._tell(row))

    def on_end(self, strategy: Strategy[Any, Any], results: Sequence[Summary]) -> None:
        """The rows of the table."""
        rows = {result.strategy: of_summary(result) for result in results}
        self._safely(lambda: self.finish(strategy.progress.round, rows))
        self._ended = True
        if self.own is None:  # nobody will come with a report
            self.close()

    def close(self, report: Path | None = None) -> None:
        """Nothing more comes, but perhaps a report; once for each strategy."""
        if not self._open:
            return
        if self._failed:
            with contextlib.suppress(Exception):
                self.leave(None, self._ended)
        else:
            self._safely(lambda: self.leave(report if self._ended else None, self._ended))
        self._open = False

    def _begin(self, strategy: Strategy[Any, Any]) -> None:
        self._known = self.begin(self._part(strategy))
        for row in read_rows(self.own) if self.own else ():
            if row["round"] <= strategy.progress.round:
                self._tell(row)

    def _tell(self, row: Mapping[str, Any]) -> None:
        if row["round"] > self._known:
            self.log(row["round"], of_round(row))
            self._known = row["round"]

    def _part(self, strategy: Strategy[Any, Any]) -> Part:
        flat, experiment = strategy.config.flat(), strategy.job.experiment
        idle = idle_keys([strategy.name]) | NOT_TOLD
        return Part(
            strategy.name,
            experiment,
            {**{key: flat[key] for key in flat if key not in idle}, "strategy": strategy.name},
            self.title or experiment,
            self.group,
            self.own or (self.folder / experiment if self.folder else None),
            tuple(measure.name for measure in strategy.job.measures),
        )

    def _safely(self, tell: Callable[[], None]) -> None:
        """Tell the tool something, unless it has failed before."""
        if self._failed:
            return
        try:
            tell()
        except Exception as error:  # whatever a server, a disk or a package of others may raise
            self._failed = True
            again = "; --resume tells it the rest" if self.own else ""
            self.note(f"{self.name}: {line(in_a_line(error))} It is told no more{again}.")


def of_round(row: Mapping[str, Any]) -> dict[str, float]:
    """A line of metrics.jsonl; its measure is among all that were asked for."""
    rest = {key: value for key, value in row.items() if key not in ("round", "measures")}
    return dict(flat({**rest, **row.get("measures", {})}))


def of_summary(result: Summary) -> dict[str, float]:
    """A row of the table: each measure, what it cost."""
    found = result.json()
    last = {f"{result.measure}/last10": result.last10}
    return dict(flat({**found["measures"], **{key: found[key] for key in ROW_NUMBERS}})) | last


def flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, float]]:
    """Every number that is finite, by its path."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{key}/")
        elif isinstance(value, int | float) and math.isfinite(value):
            yield f"{before}{key}", float(value)


def group_of(row: str, strategy: str) -> str:
    """Prefix of a row's numbers: `ft` of `fedavg+ft`, `final` of the strategy's own."""
    return row.removeprefix(strategy).removeprefix("+") or "final"


TOOLS = {
    "csv": "csv_file:Csv",
    "tensorboard": "tensorboard:TensorBoard",
    "mlflow": "mlflow:MLflow",
    "wandb": "wandb:WandB",
}
"""Where each tool's tracker is, in this folder."""


def check_tools(names: Iterable[str]) -> None:
    """Refuse tools that are not installed, or that would take nothing, before a run begins."""
    for name in names:
        found = find_spec(name)
        if found is None or found.origin is None:  # W&B's own folder `wandb` is no package
            raise ConfigError(f"log-to={name}: needs an extra: pip install 'corsage[{name}]'.")
    ready: dict[str, Callable[[], object]] = {"mlflow": mlflow_answers, "wandb": wandb_answers}
    for name in names:
        try:
            ready.get(name, lambda: None)()
        except Exception as error:  # whatever these packages raise
            raise ConfigError(f"log-to={name}: {line(in_a_line(error))}") from error


def mlflow_answers() -> None:
    """Make MLflow's experiment: several runs of a study would all want to."""
    from corsage.app.tracking.mlflow import connected

    connected()


def wandb_answers() -> None:
    """Ask W&B whether somebody is logged in."""
    from corsage.app.tracking.wandb import check_login

    check_login()


class Trackers:
    """The trackers of a run, for one strategy after the other.

    Parameters
    ----------
    names : the tools.
    folder : the run's.
    group : of the runs that belong together.
    """

    def __init__(self, names: Iterable[str], folder: Path, group: str) -> None:
        self.names, self.folder, self.group = tuple(names), folder, group
        self.made: dict[str, list[Tracker]] = {}

    def of(self, strategy: str) -> list[Tracker]:
        """New ones for a strategy, also if it begins again."""
        for earlier in self.made.pop(strategy, []):
            earlier.close()
        self.made[strategy] = [self._made(name, strategy) for name in self.names]
        return self.made[strategy]

    def _made(self, name: str, strategy: str) -> Tracker:
        module, _, cls = TOOLS[name].partition(":")
        tracker: Tracker = getattr(import_module(f"corsage.app.tracking.{module}"), cls)()
        tracker.own = self.folder / strategy
        tracker.title = f"{strategy} {self.folder.name}"
        tracker.group = self.group
        return tracker

    def close(self, report: Path | None = None) -> None:
        """Nothing more comes; the report if there is one."""
        for tracker in (tracker for made in self.made.values() for tracker in made):
            tracker.close(report)
