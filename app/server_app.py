"""The server script: every algorithm that the config names, one after the other, on the same users.

To use one strategy of your own choice, all that is needed is
`FedRep(context.run_config).start(grid)`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from corsage.app.preflight import check_simulation
from corsage.app.run.resuming import resumed
from corsage.app.run.run_folder import AnyStrategy, RunFolder
from corsage.app.run.status import watched
from corsage.core.configuration.config import Config
from corsage.core.configuration.known_keys import defaults
from corsage.core.errors import CorsageError, StatesGone
from corsage.core.registry import attachment
from corsage.strategies.rounds.turns import is_at_home


def main(opened: RunFolder | None, grid: Grid, context: Context) -> None:
    """Run and compare the strategies; the keys are Flower's if no run folder is open yet."""
    if opened:
        compare(opened, grid)
        return
    config = Config.parse(keys_of(context.run_config))
    if is_at_home(grid):
        check_simulation(config)
    folder = RunFolder.open(config)
    with folder as run, watched(run.folder, str(context.run_id)):
        compare(run, grid)


def keys_of(run_config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a run config, or of the run that it resumes.

    Flower adds all defaults: without them a strategy has the model that it needs.
    """
    if run_config.get("resume"):
        return resumed(run_config)
    idle = defaults()
    return {key: value for key, value in run_config.items() if value != idle.get(key)}


def compare(run: RunFolder, grid: Grid) -> None:
    """Those without a result; one that fails does not end the others."""
    strategies = {name: run.strategy(name) for name in run.unfinished()}
    if not ((several := attachment("side by side")) and several.played(run, strategies)):
        for name, strategy in strategies.items():
            run.attempts.attempt(name, partial(play, run, strategy, grid))
    run.conclude()


def play(run: RunFolder, strategy: AnyStrategy, grid: Grid) -> float:
    """A strategy to its end, and its seconds; from an older checkpoint if what the newest names is
    not there.
    """
    while True:
        try:
            strategy.start(grid)
            return strategy.clock.attempt
        except StatesGone as error:
            strategy = run.older(strategy.name, error)


def one_line(record: logging.LogRecord) -> bool:
    """Make an error of Corsage's own one line in Flower's log, too; a bug keeps its traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, CorsageError):
        text = " ".join(str(error).split())
        record.msg, record.args, record.exc_info = "corsage: %s", (text,), None
    return True


def build_server_app(opened: RunFolder | None = None) -> ServerApp:
    """The server app of one run."""
    logging.getLogger("flwr").addFilter(one_line)
    server_app = ServerApp()
    server_app.main()(partial(main, opened))
    return server_app


app = build_server_app()
