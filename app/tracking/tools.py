"""The tools that the key `log-to` names: whether they are there, and one for each strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from corsage.app.output.usage import in_a_line
from corsage.core.errors import ConfigError, line

if TYPE_CHECKING:
    from corsage.app.tracking.tracker import Tracker

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
