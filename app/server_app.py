"""The server script: every algorithm that the config names, one after the other, on the same users.

To use one strategy of your own choice, all that is needed is
`FedRep(context.run_config).start(grid)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from corsage.app.run_folder import RunFolder, resumed
from corsage.core.config import Config
from corsage.core.keys import Value
from corsage.strategies import strategy_class


def main(values: Mapping[str, Value], grid: Grid, context: Context) -> None:
    """Run and compare the strategies; `values` are the flat keys if Flower does not pass them."""
    config = Config.parse(values or resumed(context.run_config))
    with RunFolder.open(config) as run:
        for name in run.unfinished():
            strategy = strategy_class(name)(config, run.callbacks(name), run.experiment(name))
            strategy.federation.state_dir = run.state_dir(name)
            strategy.start(grid)


def build_server_app(values: Mapping[str, Value] | None = None) -> ServerApp:
    """The server app of one run."""
    server_app = ServerApp()
    server_app.main()(partial(main, dict(values or {})))
    return server_app


app = build_server_app()
