"""What goes over the wire: tasks and arrays as Flower records, and back.

A message from the server has the records `config` (the task), `arrays` (what all users get) and,
if the algorithm sends any, `rows` (one row a user, in the order of the task's users). A reply has
`arrays` (a mean over the node's users) or `rows`, `metrics`, and `config` (who did what).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord
from numpy.typing import NDArray

from corsage.app.config import Keys, ModelKeys, TrainKeys, flatten, read

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Task:
    """What a node is to do: for whom, in which round, by which algorithm, with which settings.

    `versions[i]` is the round in which user i's personal state was last merged by the server, 0 if
    never; `keep[i]` is the version that the server's checkpoint holds. A node starts from the one
    and forgets neither, so a round that the server never finished leaves no trace.
    """

    algorithm: str
    experiment: str
    round: int
    seed: int
    users: list[str]
    versions: list[int]
    keep: list[int]
    shape: tuple[int, ...]
    num_classes: int
    train: TrainKeys = TrainKeys()
    model: ModelKeys = ModelKeys()
    keys: Keys | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


_OWN = {
    "algorithm",
    "experiment",
    "round",
    "seed",
    "users",
    "versions",
    "keep",
    "input-shape",
    "num-classes",
}


def encode_task(task: Task) -> ConfigRecord:
    """A task as a flat config record, the algorithm's keys and settings among the rest."""
    values: dict[str, Any] = {
        "algorithm": task.algorithm,
        "experiment": task.experiment,
        "round": task.round,
        "seed": task.seed,
        "users": task.users,
        "versions": task.versions,
        "keep": task.keep,
        "input-shape": list(task.shape),
        "num-classes": task.num_classes,
        **task.options,
        **settings(task.train, task.model, task.keys),
    }
    return ConfigRecord(values)


@lru_cache(maxsize=64)
def settings(*groups: Keys | None) -> dict[str, Any]:
    """The flat keys of several groups (cached: they stay the same all run long)."""
    return {k: v for group in groups if group is not None for k, v in flatten(group).items()}


def decode_task(record: ConfigRecord) -> Task:
    """The task of a message; keys that no group declares are the strategy's options."""
    flat = {k: v for k, v in record.items() if k not in _OWN and not isinstance(v, list)}
    train, model, keys, options = _groups(str(record["algorithm"]), tuple(flat.items()))
    return Task(
        algorithm=str(record["algorithm"]),
        experiment=str(record["experiment"]),
        round=int(record["round"]),  # type: ignore[arg-type]
        seed=int(record["seed"]),  # type: ignore[arg-type]
        users=list(record["users"]),  # type: ignore[arg-type]
        versions=list(record["versions"]),  # type: ignore[arg-type]
        keep=list(record["keep"]),  # type: ignore[arg-type]
        shape=tuple(record["input-shape"]),  # type: ignore[arg-type]
        num_classes=int(record["num-classes"]),  # type: ignore[arg-type]
        train=train,
        model=model,
        keys=keys,
        options=options,
    )


@lru_cache(maxsize=64)
def _groups(
    algorithm: str, flat: tuple[tuple[str, Any], ...]
) -> tuple[TrainKeys, ModelKeys, Keys | None, dict[str, Any]]:
    from corsage.strategies import algorithm_keys

    values = dict(flat)
    train, model = read(TrainKeys, values), read(ModelKeys, values)
    declared = algorithm_keys().get(algorithm)
    keys = read(declared, values) if declared else None
    known = settings(train, model, keys)
    return train, model, keys, {k: v for k, v in values.items() if k not in known}


def encode(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Named arrays as a Flower record."""
    record = ArrayRecord()
    for name, array in arrays.items():
        record[name] = Array(np.ascontiguousarray(array))
    return record


def decode(record: ArrayRecord) -> Arrays:
    """A Flower record as named arrays."""
    return {name: array.numpy() for name, array in record.items()}


def payload(record: ArrayRecord) -> int:
    """Bytes that a record's arrays take on the wire."""
    return sum(len(array.data) for array in record.values())
