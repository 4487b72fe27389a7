"""The engines of a simulation: in this process, or Flower's virtual client engine on Ray."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import threading
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict
from flwr.serverapp import ServerApp

from corsage.app.client_app import app as client_app
from corsage.app.client_app import make_client_app
from corsage.app.local_grid import LocalGrid
from corsage.app.preflight import check_ray, check_simulation
from corsage.app.ray_engine import (
    RayStore,
    UntilOver,
    lasting,
    quiet,
    reaped,
    shut,
    started,
    store_of,
)
from corsage.app.run.run_folder import RunFolder
from corsage.app.run.status import watched
from corsage.app.server_app import build_server_app
from corsage.app.states.behind import together
from corsage.core.configuration.config import Config
from corsage.core.errors import ConfigError


def simulate(config: Config, at: Path | None = None) -> Path:
    """Run the server script with as many nodes as the config says; returns the run folder.

    `at` : the new run's folder, if it is not to be named by the time.
    """
    nodes = number_of_nodes(config)
    check_engine(config)
    check_simulation(config)
    # Made before any engine starts, so that a folder that cannot be written, or that another
    # process works on, is known at once.
    with RunFolder.open(config, nodes, at) as run, watched(run.folder):
        engine = {"local": local, "ray": on_ray}[config.run.engine]
        here = contextlib.nullcontext() if config.run.engine == "ray" else together(run.folder)
        with here:
            engine(config, nodes, build_server_app(run))
    return run.folder


def number_of_nodes(config: Config) -> int:
    """`num-nodes`, or what is best for the engine: one node in process, one a worker on Ray."""
    federation = config.federation
    automatic = 1 if config.run.engine == "local" else _ray_workers(config)
    number = federation.num_nodes or automatic
    if federation.num_users and number > federation.num_users:
        if federation.num_nodes:
            raise ConfigError(
                f"num-nodes={number}: more nodes than users (num-users={federation.num_users})."
            )
        number = federation.num_users
    return number


def check_engine(config: Config) -> None:
    """Refuse Ray where it is not, or where nobody listens; it is not loaded for that."""
    if config.run.engine != "ray":
        return
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("engine=ray: Ray is not installed (pip install 'flwr[simulation]').")
    if config.federation.ray_address:
        check_ray(config.federation.ray_address)


def local(config: Config, nodes: int, server_app: ServerApp) -> None:
    """Run a server script in this process."""
    grid = LocalGrid(make_client_app(), nodes)  # its own: what it prepared goes when it does
    server_app(grid, Context(grid.run.run_id, 0, {}, RecordDict(), {}))


def on_ray(config: Config, nodes: int, server_app: ServerApp) -> None:
    """Run a server script on Ray."""
    federation = config.federation
    quiet()
    if not federation.ray_address:
        shut()
    import ray
    from flwr.simulation import run_simulation

    arguments: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if federation.ray_address:
        arguments["address"] = federation.ray_address
    backend = {
        "init_args": arguments,
        "client_resources": {"num_cpus": federation.node_cpus, "num_gpus": federation.node_gpus},
    }
    own = contextlib.nullcontext() if federation.ray_address else reaped()
    over = threading.Event()
    with own, lasting(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if not federation.ray_address:
                started(arguments)
            run_simulation(  # the only call: Flower deprecates it in favour of `flwr run`
                server_app=UntilOver(server_app, over, partial(ray_store, config, nodes)),
                client_app=client_app,
                num_supernodes=nodes,
                backend_config=backend,
            )
        finally:
            over.set()
            ray.shutdown()


def ray_store(config: Config, nodes: int) -> RayStore:
    """The store of the Ray that runs, and how many workers it has for these nodes."""
    import ray

    found = ray.cluster_resources()  # type: ignore[no-untyped-call]
    workers = int(float(found.get("CPU", 1)) / config.federation.node_cpus)
    return store_of(max(1, workers), nodes)


def _ray_workers(config: Config) -> int:
    """The number of workers that fit on this machine; on a cluster the user says num-nodes."""
    if config.federation.ray_address and not config.federation.num_nodes:
        raise ConfigError("ray-address: say how many nodes host the users (num-nodes=...).")
    return max(1, int((os.cpu_count() or 1) / config.federation.node_cpus))
