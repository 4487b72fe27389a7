"""A node: which users it hosts, where their data and their states are, what it computes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context

from corsage.app.config import Config, DataKeys, Value, flatten, kebab
from corsage.app.errors import ConfigError
from corsage.app.store import writable_folder
from corsage.datasets.federated import FederatedData, on_device, simulated

PLACES = ("data-dir", "data-file", "cache-dir")  # a node's own, not the run's
DEVICE_KEYS = ("data", "user", "cluster", "num-classes", "state-dir", "device", "torch-threads")


@dataclass(frozen=True)
class Node:
    """What a node has of its own; a simulated one has a share of a data set.

    Parameters
    ----------
    data : the data of its users, and perhaps of others.
    users : the users that this node hosts.
    state_dir : folder for personal states on a device, None in a simulation.
    device, threads : what to compute on, if the node says so itself.
    """

    data: FederatedData
    users: tuple[str, ...]
    simulated: bool
    state_dir: Path | None = None
    device: str = ""
    threads: int = 0


def shared_keys(config: Config) -> dict[str, Value]:
    """What nodes must know of a run to find their users' data as the server means them.

    A run that is resumed has its keys from its run folder: its nodes do not see that.
    """
    sizes = {"num-users": config.federation.num_users, "seed": config.run.seed}
    return {k: v for k, v in flatten(config.data).items() if k not in PLACES} | sizes


def node_of(context: Context, values: Mapping[str, Any], shared: Mapping[str, Any]) -> Node:
    """The node that a context belongs to; `values` are the run's flat keys, `shared` those of them
    that came with the message.
    """
    if not values:
        known = {*flatten(DataKeys()), "num-users", "seed"}
        sent = {k: v for k, v in shared.items() if k in known}
        values = {**context.run_config, **sent}
    return _node(_items(context.node_config), _items(values))


def _items(values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(values.items()))


@lru_cache(maxsize=4096)
def _node(own: tuple[tuple[str, Any], ...], values: tuple[tuple[str, Any], ...]) -> Node:
    node_config = dict(own)
    config = Config.parse(dict(values))
    if "data" in node_config:
        return _device(node_config, dict(values), config)
    if "partition-id" not in node_config:
        raise ConfigError(
            'this node has no data: give it --node-config "data=FILE user=NAME state-dir=FOLDER".'
        )
    number, count = int(node_config["partition-id"]), int(node_config["num-partitions"])
    data = simulated(config.data, config.federation.num_users, config.run.seed)
    return Node(data, tuple(data.users[number::count]), simulated=True)


def _device(node_config: dict[str, Any], values: dict[str, Any], config: Config) -> Node:
    """A device: its own file, and its own words on how to read it."""
    readable = {kebab(f.name) for f in fields(DataKeys)}
    unknown = set(node_config) - readable - set(DEVICE_KEYS)
    if unknown:
        known = ", ".join(DEVICE_KEYS)
        raise ConfigError(f"node config: {', '.join(sorted(unknown))}: unknown. Known: {known}.")
    own = {name: value for name, value in node_config.items() if name in readable}
    keys = Config.parse({**values, **own}).data if own else config.data
    user, cluster = str(node_config.get("user", "")), str(node_config.get("cluster", ""))
    data = on_device(str(node_config["data"]), user, cluster, keys, config.run.seed)
    classes = int(node_config.get("num-classes", data.num_classes))
    if classes < data.num_classes:
        raise ConfigError(f"node config: num-classes={classes}, but there are {data.num_classes}.")
    state_dir = str(node_config.get("state-dir", ""))
    return Node(
        replace(data, num_classes=classes),
        tuple(data.users),
        simulated=False,
        state_dir=writable_folder(state_dir) if state_dir else None,
        device=str(node_config.get("device", "")),
        threads=int(node_config.get("torch-threads", 0)),
    )
