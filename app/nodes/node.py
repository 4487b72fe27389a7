"""A node: which users it hosts, where their data and their states are, what it computes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Context

from corsage.app.nodes.deployed import WORKER_SECONDS, is_device, worker_seconds
from corsage.app.states.state_dir import KEEP_RUNS, runs_to_keep, state_folder
from corsage.clients import client_class
from corsage.core.arrays import Arrays
from corsage.core.cache import Cache
from corsage.core.configuration.config import check_data
from corsage.core.configuration.key_groups import DataKeys
from corsage.core.errors import ConfigError
from corsage.core.keys import convert, flatten, names, read
from corsage.core.messages.limits import Limits, limits_of
from corsage.core.messages.wire import END_HEAD, Task
from corsage.core.registry import attached
from corsage.datasets.dealing.federated import on_device, simulated, source_marks
from corsage.datasets.shared_keys import CsvKeys, TableKeys
from corsage.datasets.user_data import FederatedData

if TYPE_CHECKING:
    from corsage.app.nodes.own import Own
    from corsage.clients.base import Client
    from corsage.core.tables.column_facts import TableFacts
    from corsage.core.tables.preparation import Preparation
    from corsage.networks.own_training import OwnTraining

DEVICE_KEYS = (
    *("data", "user", "cluster", "num-classes", "state-dir", "keep-runs", "device"),
    *("torch-threads", "share-columns", WORKER_SECONDS),
)
NO_DATA = 'this node has no data: give it --node-config "data=FILE user=NAME state-dir=FOLDER".'
Facts = tuple[Any, ...]
FILE_WORDS = ("data", "cluster-map")
"""Words of a node config that name files."""
CACHED = 16
"""What a device prepares and keeps for later messages, at most."""


@dataclass(frozen=True)
class Node:
    """What a node has of its own; a simulated one has a share of a data set.

    Parameters
    ----------
    data : the data of its users, and perhaps of others.
    users : the users that this node hosts.
    state_dir : folder for personal states on a device, None in a simulation.
    keep_runs : the states of how many runs stay there.
    device, threads : what to compute on, if the node says so itself.
    cache : what was prepared for its users in earlier messages.
    training : how its app trains models itself, if it does.
    sums : whether the means and spreads of a table's columns are asked for.
    shares : whether a device says anything of its columns but their names.
    floor : of so many rows at least is what sums tell, and more if the run says so.
    """

    data: FederatedData
    users: tuple[str, ...]
    simulated: bool
    state_dir: Path | None = None
    keep_runs: int = KEEP_RUNS
    device: str = ""
    threads: int = 0
    cache: Cache = field(default_factory=Cache)
    training: OwnTraining | None = None
    sums: bool = False
    shares: bool = True
    floor: int = 0

    def prepared(self, preparation: Preparation | None) -> Node:
        """The node as the model sees its data, once the federation has agreed on how."""
        if preparation is None or self.data.facts is None:
            return self
        return replace(self, data=attached("prepared tables").prepared(self.data, preparation))

    @property
    def table(self) -> TableFacts | None:
        """Facts of the columns of the node's table, by its own users' training rows."""
        data = self.data
        if data.facts is None:
            return None
        train = np.zeros(len(data.y), dtype=bool)
        train[data.rows(self.users, test=False)[0]] = True
        sums = self.sums and int(train.sum()) >= self.floor  # of fewer rows they tell these
        given = data.facts, data.x, data.y, train, sums, self.shares
        facts: TableFacts = self.cache.get(
            ("table", sums, self.shares), lambda: attached("summed tables").summed(*given)
        )
        return facts


@dataclass(frozen=True)
class Order:
    """A task, and the arrays that came with it: for all users alike, and with a row for each."""

    task: Task
    arrays: Arrays
    rows: Arrays


class Nodes:
    """The nodes that this process has worked for: a simulation's worker serves many.

    `app` is what the app brings along of its own, if anything.
    """

    def __init__(self, app: Own | None = None) -> None:
        self.app, self._nodes = app, Cache()
        self._now: dict[Facts, tuple[Facts, Node]] = {}  # of the run that each is in
        self._devices: dict[Facts, tuple[Facts, Node]] = {}

    def __reduce__(self) -> tuple[type[Nodes], tuple[Own | None]]:
        """Another process, such as a worker of Ray's, has nodes of its own."""
        return Nodes, (self.app,)

    def of(self, context: Context, task: Task) -> Node:
        """The node that a context belongs to, with the data that the task means."""
        node_config = tuple(sorted(context.node_config.items()))
        if self.app is not None:
            return self._own(self.app, (context.node_id, *node_config), context, task)
        if is_device(context):
            return self._device(node_config, task)
        together = client_class(task.algorithm).cohorts
        facts = task.data, task.device_data, task.num_users, task.seed, together
        now = node_config, task.experiment, *facts, task.preparation
        known = self._now.get(node_config)
        if known is None or known[0] != now or not task.users:  # an introduction looks anew
            known = now, self._simulated(node_config, facts, task.preparation)
            self._now[node_config] = known
        return known[1]

    def _simulated(self, own: Facts, facts: Any, agreed: Preparation | None) -> Node:
        """A node with a share of a data set; of a file that was rewritten since, anew."""
        key = own, *facts, source_marks(facts[0])
        make = partial(self._nodes.get, key, lambda: simulated_node(dict(own), *facts))
        if agreed is None:
            return make()
        return self._nodes.get((*key, agreed), lambda: make().prepared(agreed))

    def limits(self, context: Context) -> Limits:
        """The limits of a device: those that its owner set, and the model of its own app."""
        limits = limits_of(context.node_config)
        return limits if self.app is None else self.app.allowed(limits)

    def _own(self, app: Own, key: Facts, context: Context, task: Task) -> Node:
        """The same where the data are the app's own."""
        facts = task.device_data, task.seed, task.model, task.algorithm
        if key not in self._devices or self._devices[key][0] != facts:
            self._devices.pop(key, None)
            self._devices[key] = facts, app.node(context, task)
        return self._devices[key][1]

    def _device(self, mine: Facts, task: Task) -> Node:
        """A device, as the last message had it: others that a server thinks of are let go.

        Its files may have changed since.
        """
        facts = task.device_data, task.seed, task.preparation, marks(dict(mine))
        if mine not in self._devices or self._devices[mine][0] != facts:
            self._devices.pop(mine, None)
            made = _device(dict(mine), task.device_data, task.seed)
            check_room(made.data, task.preparation, limits_of(dict(mine)))
            self._devices[mine] = facts, made.prepared(task.preparation)
        node = self._devices[mine][1]
        if node.state_dir is not None:
            state_folder(str(node.state_dir))  # made again if it is gone since, or an error
        return node


def simulated_node(
    node_config: dict[str, Any],
    keys: DataKeys,
    device_keys: DataKeys,
    num_users: int,
    seed: int,
    together: bool,
) -> Node:
    """A node with a share of a simulation's users."""
    check_data(keys, flatten(device_keys))
    if "partition-id" not in node_config:
        raise ConfigError(NO_DATA)
    number, count = int(node_config["partition-id"]), int(node_config["num-partitions"])
    data = simulated(keys, num_users, seed)
    users = hosted_together(data, number, count) if together else data.users[number::count]
    if "users" in node_config:
        some = set(json.loads(node_config["users"]))
        users = [user for user in users if user in some]
    return Node(data, tuple(users), simulated=True, sums=wants_sums(keys))


def wants_sums(keys: DataKeys) -> bool:
    """True if the federation's means and spreads are needed."""
    return isinstance(keys, TableKeys) and keys.sums


def hosted_together(data: FederatedData, number: int, count: int) -> list[str]:
    """The users of simulated node `number`: whole clusters, if there are enough for all nodes.

    The largest cluster goes to the node with the fewest users, and so on; with more nodes than
    clusters every node has an equal share of the users sorted by cluster.
    """
    groups: dict[str, list[str]] = {}
    for user in data.users:
        groups.setdefault(data.clusters.get(user, ""), []).append(user)
    if len(groups) < count:
        ordered = [user for name in sorted(groups) for user in groups[name]]
        ends = [len(ordered) * i // count for i in (number, number + 1)]
        return ordered[ends[0] : ends[1]]
    nodes: list[list[str]] = [[] for _ in range(count)]
    for name in sorted(groups, key=lambda name: (-len(groups[name]), name)):
        min(nodes, key=len).extend(groups[name])
    return nodes[number]


def _device(node_config: dict[str, Any], keys: DataKeys, seed: int) -> Node:
    """A device: its own file, and its own words on how to read it."""
    if "data" not in node_config:
        raise ConfigError(NO_DATA)
    readable = set(names(CsvKeys))
    unknown = set(node_config) - readable - {*DEVICE_KEYS, *names(Limits)}
    if unknown:
        known = ", ".join((*DEVICE_KEYS, *names(Limits)))
        raise ConfigError(f"node config: {', '.join(sorted(unknown))}: unknown. Known: {known}.")
    mine = {name: value for name, value in node_config.items() if name in readable}
    if "scale" in mine:
        raise ConfigError(
            "node config: scale: the run says by what columns are scaled; share-columns=false "
            "keeps the sums of this device here."
        )
    file = read(CsvKeys, {**flatten(keys), **mine})
    user, cluster = str(node_config.get("user", "")), str(node_config.get("cluster", ""))
    data = on_device(str(node_config["data"]), user, cluster, file, seed)
    if "num-classes" in node_config and not data.num_classes:
        raise ConfigError("node config: num-classes: the labels are numbers; leave it out.")
    classes = int(node_config.get("num-classes", data.num_classes))
    if classes < data.num_classes:
        raise ConfigError(f"node config: num-classes={classes}, but there are {data.num_classes}.")
    own_data = replace(data, num_classes=classes)
    words = own_words(node_config)
    return Node(own_data, tuple(data.users), simulated=False, sums=wants_sums(keys), **words)


def marks(node_config: Mapping[str, Any]) -> Facts:
    """Marks by which a device's files are known to be those that were read."""
    stamps: list[tuple[int, ...]] = []
    for name in FILE_WORDS:
        try:
            info = Path(str(node_config[name])).expanduser().stat()
        except (KeyError, OSError):
            continue
        stamps.append((info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns))
    return tuple(stamps)


def check_room(data: FederatedData, preparation: Preparation | None, limits: Limits) -> None:
    """Refuse words without number, each of which would be an input for every row of the file."""
    if preparation is None or data.facts is None:
        return
    rows, width = data.x.shape
    if len(preparation.features) > 2 * width:  # numbers are two inputs at most
        limits.check_space("the inputs of all rows", rows * len(preparation.features))


def own_words(node_config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a node that a device's node config sets, such as where it keeps states."""
    state_dir = str(node_config.get("state-dir", ""))
    worker_seconds(node_config)  # or an error
    return {
        "state_dir": state_folder(state_dir) if state_dir else None,
        "keep_runs": runs_to_keep(node_config.get("keep-runs", KEEP_RUNS)),
        "device": str(node_config.get("device", "cpu")),
        "threads": int(node_config.get("torch-threads", 0)),
        "cache": Cache(CACHED),
        "shares": convert("share-columns", node_config.get("share-columns", True), bool),
        "floor": limits_of(node_config).min_share,
    }


def client_of(task: Task) -> type[Client[Any]]:
    """The client that answers a task: that of the algorithm, or of heads at its end."""
    if END_HEAD in task.options:
        return attached("heads at home").client_for(task)  # type: ignore[no-any-return]
    return client_class(task.algorithm)
