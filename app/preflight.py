"""Checks of a simulation before it makes a folder: its keys, its data, its model.

A key, a file or a model that cannot be used is then one line, and nothing is left behind. Devices
have data that the server never sees: what is wrong with these turns up when they introduce
themselves.
"""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from corsage.app.client_app import app as client_app
from corsage.app.local_grid import LocalGrid
from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError
from corsage.datasets.dealing.federated import check_users, simulated
from corsage.datasets.user_data import FederatedData
from corsage.networks.build import check_available
from corsage.strategies import strategy_class
from corsage.strategies.rounds.agreed import check_data
from corsage.strategies.rounds.callbacks import Callback

CONNECT_SECONDS = 5.0
"""Seconds that a Ray cluster has to take a connection."""


class Mute(Callback):
    """Shows notes to nobody: they are said again when the strategy is run."""

    shows_notes = True


def check_simulation(config: Config) -> None:
    """Refuse what cannot be run: a device, data, a model, or a strategy that these are not for.

    The data are prepared here, so that a simulation's workers find them ready.
    """
    if not config.federation.ray_address:
        check_available(config.train.device)
    config.check_simulated()
    data = simulated(config.data, config.federation.num_users, config.run.seed)
    check_users(data)
    check_min_users(config, data)
    if not config.run.resume:  # there, some are done already
        check_strategies(config)


def check_min_users(config: Config, data: FederatedData) -> None:
    """Refuse to wait for more replies than there are users."""
    least = config.federation.min_users
    if least > len(data.users):
        raise ConfigError(f"min-users={least}: there are {len(data.users)} users; lower it.")


def check_strategies(config: Config) -> None:
    """Let each strategy meet its users and build its model, all of them before any is run."""
    nodes = max(config.federation.num_nodes, 1)
    for name in config.run.strategy:
        strategy = strategy_class(name)(config, [Mute()])
        strategy.begin(LocalGrid(client_app, nodes))
        check_data(strategy.job)
        if config.robust.on:
            strategy.averaging.check_enough(len(strategy.choose(1, strategy.members.users)))


def check_ray(address: str) -> None:
    """Refuse an address of a Ray cluster at which nobody listens: Ray would try for a minute."""
    if address == "auto":
        return
    place = urlsplit(address if "://" in address else f"//{address}")
    try:
        if not place.hostname or not place.port:
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"ray-address={address}: no such address; it is auto, HOST:PORT or ray://HOST:PORT."
        ) from None
    try:
        socket.create_connection((place.hostname, place.port), CONNECT_SECONDS).close()
    except OSError as error:
        raise ConfigError(
            f"ray-address={address}: nothing answers there ({error.strerror or error}); start a "
            "cluster with `ray start --head`, or leave it out to use this machine."
        ) from error
