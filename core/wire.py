"""What goes over the wire: tasks and arrays as Flower records, and back.

A message from the server has the records `config` (the task), `arrays` (what all users get) and,
if the algorithm sends any, `rows` (one row a user, in the order of the task's users). A reply has
`arrays` (a mean over the node's users) or `rows`, `metrics`, and `config` (who did what).
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord
from numpy.typing import NDArray

from corsage.core.arrays import Arrays
from corsage.core.asked import Form
from corsage.core.errors import Refused
from corsage.core.groups import DataKeys, ModelKeys, TrainKeys
from corsage.core.keys import Keys, NoKeys, flatten, read
from corsage.core.registry import DEVICE, data_keys, keys_class

MEMBERS = "members"
"""The option that names the users of cohorts, and the array that does so in a cohort's state."""
COHORT_OPTIONS = "cohort-options"
"""The option with one JSON text of options for each cohort."""
ANY = "K"
"""In the shape of an array: any length."""
DTYPES = {"f": ("float32", "float64"), "i": ("int64",)}
MOST_HEADER = 1024
"""Bytes of the header of an array: NumPy's has 128."""
_NPY = b"\x93NUMPY\x01\x00"


@dataclass(frozen=True)
class Task:
    """What a node is to do: for whom, in which round, by which algorithm, with which settings.

    `state_dir` is where simulated users keep what is theirs, on one machine or on `many_machines`;
    a device knows itself.

    It holds all that a node has to know of a run, since Flower passes a run's config to nodes in
    deployments only, and there not that of the run that is resumed.

    `data` says what a simulated node deals, `device_data` how a device reads a file of its own.

    `versions[i]` is the round in which user i's personal state was last merged by the server, 0 if
    never; `keep[i]` is the version that the server's checkpoint holds. A node starts from the one
    and forgets neither, so a round that the server never finished leaves no trace.
    """

    algorithm: str
    experiment: str
    seed: int
    shape: tuple[int, ...]
    num_classes: int
    num_users: int = 0
    round: int = 0
    users: list[str] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    keep: list[int] = field(default_factory=list)
    data: DataKeys = DataKeys()
    device_data: DataKeys = DataKeys()
    train: TrainKeys = TrainKeys()
    model: ModelKeys = ModelKeys()
    keys: Keys = NoKeys()
    state_dir: str = ""
    many_machines: bool = False
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
        (task.device_data, task.data, task.train, task.model, task.keys),
    )
    return config_record(
        {
            "settings": fixed,
            "round": task.round,
            "users": task.users,
            "versions": task.versions,
            "keep": task.keep,
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
        }
    )


def decode_task(record: ConfigRecord) -> Task:
    """The task of a message; keys that are not the task's own are the strategy's options."""
    own = (*("settings", "round", "users", "versions", "keep"), "state-dir", "many-machines")
    return replace(
        _settings(str(record["settings"])),
        round=int(record["round"]),  # type: ignore[arg-type]
        users=list(record.get("users", [])),  # type: ignore[arg-type]
        versions=list(record.get("versions", [])),  # type: ignore[arg-type]
        keep=list(record.get("keep", [])),  # type: ignore[arg-type]
        state_dir=str(record.get("state-dir", "")),
        many_machines=bool(record.get("many-machines", False)),
        options={name: value for name, value in record.items() if name not in own},
    )


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
        data=read(data_keys(dataset), fixed["keys"]),
        device_data=read(data_keys(DEVICE), fixed["keys"]),
        train=read(TrainKeys, fixed["keys"]),
        model=read(ModelKeys, fixed["keys"]),
        keys=read(keys_class(fixed["algorithm"]), fixed["keys"]),
    )


def encode(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Named arrays as a Flower record."""
    record = ArrayRecord()
    for name, array in arrays.items():
        record[name] = _array(np.ascontiguousarray(array))
    return record


def _array(array: NDArray[Any]) -> Array:
    """What `Array(array)` gives, without writing the same header with NumPy's slow writer again."""
    data = _header(array.dtype.str, array.shape) + array.tobytes()
    return Array(str(array.dtype), array.shape, "numpy.ndarray", data)


@lru_cache(maxsize=256)
def _header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The header of NumPy's file format."""
    buffer = io.BytesIO()
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue()


def decode(record: ArrayRecord) -> Arrays:
    """A Flower record as named arrays."""
    return {name: _numpy(array) for name, array in record.items()}


def _numpy(array: Array) -> NDArray[Any]:
    """What `array.numpy()` gives, ten times as fast for small arrays.

    Flower's arrays hold NumPy's file format; its header repeats what the array says of itself, so
    it need not be parsed. Anything unusual is left to NumPy.
    """
    data = array.data
    if (
        array.stype != "numpy.ndarray"
        or data[:8] != _NPY
        or b"'fortran_order': False"
        not in (data[10 : (start := 10 + int.from_bytes(data[8:10], "little"))])
    ):
        return array.numpy()
    return np.frombuffer(data, np.dtype(array.dtype), offset=start).reshape(array.shape).copy()


def decode_as(
    record: Any, forms: Mapping[str, Form], sizes: Mapping[str, int], rows: int | None = None
) -> Arrays:
    """The declared arrays of a record, each checked before it is decoded; others are left unread.

    Parameters
    ----------
    forms, sizes : what the arrays are like, and what the letters in their shapes stand for.
    rows : how many rows each of them has, if it has one a user.
    """
    if not isinstance(record, ArrayRecord):
        raise Refused(f"arrays came as {type(record).__name__}, not as an ArrayRecord")
    found = {}
    for name, form in forms.items():
        if name in record:
            sides = form.sides if rows is None else (rows, *form.sides)
            check_array(name, record[name], sides, form.kind, sizes)
            found[name] = _numpy(record[name])
    return found


def check_array(
    name: str, array: Array, sides: tuple[str | int, ...], kind: str, sizes: Mapping[str, int]
) -> None:
    """Refuse an array of another type or shape, or whose bytes are not what it says of itself."""
    if array.dtype not in DTYPES[kind]:
        raise Refused(f"array {name}: {array.dtype[:20]} is not {' or '.join(DTYPES[kind])}")
    shape = tuple(array.shape)
    wanted = tuple(side if isinstance(side, int) else sizes.get(side, side) for side in sides)
    if len(shape) != len(wanted) or not all(
        type(n) is int and n >= 0 and side in (n, ANY)
        for n, side in zip(shape, wanted, strict=True)
    ):
        raise Refused(f"array {name}: its shape is {str(shape)[:60]}, not {wanted}")
    data, header = array.data, _header(np.dtype(array.dtype).str, shape)
    start = len(_NPY) + 2 + int.from_bytes(data[len(_NPY) : len(_NPY) + 2], "little")
    length = start + math.prod(shape) * np.dtype(array.dtype).itemsize
    if array.stype != "numpy.ndarray" or len(data) != length or start > MOST_HEADER:
        raise Refused(f"array {name}: {len(data)} bytes are not those of {array.dtype} {shape}")
    if data[: len(_NPY)] != _NPY or data[len(_NPY) + 2 : start].split() != header[10:].split():
        raise Refused(f"array {name}: its header is not that of {array.dtype} {shape}")


def payload(record: ArrayRecord) -> int:
    """Bytes that a record's arrays take on the wire."""
    return sum(len(array.data) for array in record.values())
