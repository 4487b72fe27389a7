"""What goes over the wire: tasks as Flower records, and back; arrays are in encoding.py.

A message from the server has the records `config` (the task), `arrays` (what all users get) and,
if the algorithm sends any, `rows` (one row a user, in the order of the task's users). A reply has
`arrays` (a mean over the node's users) or `rows`, `metrics`, and `config` (who did what, in which
exchange); what it must be is declared in schema.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from flwr.app import ConfigRecord

from corsage.core.groups import DataKeys, ModelKeys, TrainKeys
from corsage.core.keys import Keys, NoKeys, flatten, read
from corsage.core.preparation import Preparation
from corsage.core.registry import DEVICE, data_keys, keys_class

MEMBERS = "members"
"""The option that names the users of cohorts, and the array that does so in a cohort's state."""
COHORT_OPTIONS = "cohort-options"
"""The option with one JSON text of options for each cohort."""
ENDS_THE_RUN, ENDS_THE_STRATEGY = 1010, 1011
"""Codes of error replies with which a simulated node ends the run, since it cannot keep its users'
states, or the strategy, whose states are damaged. A device has no such say.
"""
ROW, DELIVER, ROOM = "row", "deliver", "room"
"""Options of evaluations: of which row of the table, whether it is the one that the table shows,
and how many bytes each user's model may then take in the run folder.
"""
BY_USER = "by-user"
"""The option with which a node sends one row a user also of arrays that are averaged."""


@dataclass(frozen=True)
class Task:
    """What a node is to do: for whom, in which round, by which algorithm, with which settings.

    `state_dir` is where simulated users keep what is theirs, on one machine or on `many_machines`;
    a device knows itself.

    It holds all that a node has to know of a run, since Flower passes a run's config to nodes in
    deployments only, and there not that of the run that is resumed.

    `preparation` is what the federation agreed on for the columns of its tables, if they are any.

    `data` says what a simulated node deals, `device_data` how a device reads a file of its own.

    `exchange` names the exchange: replies repeat it, so that none is taken for another's.

    `frozen` is the fingerprint of what of the model nobody trains; empty: there is nothing of it.

    `sole`: no other node is asked, so a mean may come in the precision of what it is of.

    `weights[i]` is what user i weighs in a mean by samples, if not what its samples say: none may
    have more than `max-share`.

    `versions[i]` is the round in which user i's personal state was last merged by the server, 0 if
    never; `keep[i]` are the versions that the server's checkpoints hold, one a checkpoint and as
    many for every user (0: none; the same one may come several times). A node starts from the one
    and forgets none of them, so a round that the server never finished leaves no trace, and the
    server may go back to any of its checkpoints. On the wire `keep` is one flat list, user by user.
    """

    algorithm: str
    experiment: str
    seed: int
    shape: tuple[int, ...]
    num_classes: int
    num_users: int = 0
    round: int = 0
    exchange: str = ""
    frozen: str = ""
    sole: bool = False
    users: list[str] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    keep: list[list[int]] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    data: DataKeys = DataKeys()
    device_data: DataKeys = DataKeys()
    train: TrainKeys = TrainKeys()
    model: ModelKeys = ModelKeys()
    keys: Keys = NoKeys()
    state_dir: str = ""
    many_machines: bool = False
    preparation: Preparation | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def encode_task(task: Task) -> ConfigRecord:
    """A task as a config record; what stays the same all run long is one JSON text."""
    fixed = _fixed(
        task.algorithm,
        task.experiment,
        task.seed,
        task.shape,
        task.num_classes,
        task.num_users,
        task.preparation,
        (task.device_data, task.data, task.train, task.model, task.keys),
    )
    return config_record(
        {
            "settings": fixed,
            "round": task.round,
            "exchange": task.exchange,
            "frozen": task.frozen,
            **({"sole": True} if task.sole else {}),
            "users": task.users,
            "versions": task.versions,
            "keep": [version for kept in task.keep for version in kept],
            "weights": task.weights,
            "state-dir": task.state_dir,
            "many-machines": task.many_machines,
            **task.options,
        }
    )


def config_record(values: Mapping[str, Any]) -> ConfigRecord:
    """A record without empty lists and texts: Flower cannot measure one that has any."""
    return ConfigRecord({name: value for name, value in values.items() if value not in ([], "")})


@lru_cache(maxsize=64)
def _fixed(
    algorithm: str,
    experiment: str,
    seed: int,
    shape: tuple[int, ...],
    num_classes: int,
    num_users: int,
    preparation: Preparation | None,
    groups: tuple[Keys, ...],
) -> str:
    keys = {k: v for group in groups for k, v in flatten(group).items()}
    return json.dumps(
        {
            "algorithm": algorithm,
            "experiment": experiment,
            "seed": seed,
            "input-shape": shape,
            "num-classes": num_classes,
            "num-users": num_users,
            "keys": keys,
            **({"preparation": preparation.json()} if preparation else {}),
        }
    )


def decode_task(record: ConfigRecord) -> Task:
    """The task of a message; keys that are not the task's own are the strategy's options."""
    users: list[str] = list(record.get("users", []))  # type: ignore[arg-type]
    own = (
        "settings",
        "round",
        "exchange",
        "frozen",
        "sole",
        "users",
        "versions",
        "keep",
        "weights",
        "state-dir",
        "many-machines",
    )
    return replace(
        _settings(str(record["settings"])),
        round=int(record["round"]),  # type: ignore[arg-type]
        exchange=str(record.get("exchange", "")),
        frozen=str(record.get("frozen", "")),
        sole=bool(record.get("sole", False)),
        users=users,
        versions=list(record.get("versions", [])),  # type: ignore[arg-type]
        keep=by_user(list(record.get("keep", [])), len(users)),  # type: ignore[arg-type]
        weights=list(record.get("weights", [])),  # type: ignore[arg-type]
        state_dir=str(record.get("state-dir", "")),
        many_machines=bool(record.get("many-machines", False)),
        options={name: value for name, value in record.items() if name not in own},
    )


def by_user(flat: list[int], users: int) -> list[list[int]]:
    """A flat list in as many equal parts as there are users."""
    if len(flat) % max(users, 1):
        raise ValueError(f"keep has {len(flat)} versions for {users} users")
    each = len(flat) // max(users, 1)
    return [flat[each * i : each * (i + 1)] for i in range(users)]


@lru_cache(maxsize=64)
def _settings(text: str) -> Task:
    fixed = json.loads(text)
    dataset = read(DataKeys, fixed["keys"]).dataset
    return Task(
        algorithm=fixed["algorithm"],
        experiment=fixed["experiment"],
        seed=fixed["seed"],
        shape=tuple(fixed["input-shape"]),
        num_classes=fixed["num-classes"],
        num_users=fixed["num-users"],
        preparation=Preparation.read(found) if (found := fixed.get("preparation")) else None,
        data=read(data_keys(dataset), fixed["keys"]),
        device_data=read(data_keys(DEVICE), fixed["keys"]),
        train=read(TrainKeys, fixed["keys"]),
        model=read(ModelKeys, fixed["keys"]),
        keys=read(keys_class(fixed["algorithm"]), fixed["keys"]),
    )
