"""Declarations of data sets, and what is done with them.

A new data set is a file with a `DATASET` like the others', and a line in `DATASETS` of
`core/registry.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from corsage.core.arrays import Array, Ints
from corsage.core.configuration.key_groups import DataKeys
from corsage.core.errors import ConfigError
from corsage.core.keys import nearest
from corsage.core.registry import DATASETS
from corsage.core.registry import data_set as registered
from corsage.datasets.sample_table import Table

D = TypeVar("D", bound=DataKeys)


def no_files(keys: DataKeys) -> list[Path]:
    """The source files of what is drawn, or downloaded."""
    return []


def any_keys(keys: DataKeys) -> None:
    """The check of what refuses no keys."""


class Arranged(NamedTuple):
    """Data that are user by user already, in arrays that may be mapped into memory.

    User i's rows of x and y are given by `bounds[i]`: start, end of the training part, end.
    """

    users: list[str]
    clusters: dict[str, str]
    num_classes: int
    shift: float
    scale: float
    x: Array
    y: Array
    bounds: Ints


@dataclass(frozen=True)
class DataSet(Generic[D]):
    """A data set, or several of one kind: `keys.dataset` says which one is meant.

    Parameters
    ----------
    load : makes the table of all samples.
    keys : the keys that it reads: `DataKeys`, or a dataclass that inherits them and adds its own.
    files : the files on this machine that it is read from: if one changes, it is prepared anew.
    check : refuses keys that cannot be meant, before anything is read.
    users : who its users are: "dealt" by the key partition, its "own", or "either" as one likes.
    tested : whether it says which samples are for testing.
    keep : where what is prepared of it is kept instead of on disk, for data that no file may have.
    read : reads a file of a device's own, of which some columns may be absent.
    arranged : gives the data user by user as they lie on the disk, so that none are prepared.
    prefers : keys that had better have another value than usual, such as a model that suits it.
    """

    load: Callable[[D], Table]
    keys: type[D]
    files: Callable[[D], list[Path]] = no_files
    check: Callable[[D], None] = any_keys
    users: Literal["dealt", "own", "either"] = "dealt"
    tested: bool = False
    keep: Callable[[D], dict[Any, Any]] | None = None
    read: Callable[..., Table] | None = None
    arranged: Callable[[D], Arranged] | None = None
    prefers: Mapping[str, str] = field(default_factory=dict)


def data_set(name: str) -> DataSet[Any]:
    """A data set by name."""
    if name not in DATASETS:
        raise ConfigError(f"dataset={name}: no such data set.{nearest(name, DATASETS)}")
    found: DataSet[Any] = registered(name)
    return found


def load_table(keys: DataKeys) -> Table:
    """The whole data set that the keys name."""
    check_keys(keys)
    return data_set(keys.dataset).load(keys)


def check_keys(keys: DataKeys) -> None:
    """Refuse keys that cannot be meant for their data set."""
    chosen = data_set(keys.dataset)
    chosen.check(keys)
    if keys.validation and not (chosen.tested or keys.test_fraction):
        raise ConfigError(
            f"validation={keys.validation:g}: test-fraction=0 keeps nothing out; leave one out."
        )
    if chosen.tested and keys.test_fraction != DataKeys.test_fraction:
        raise ConfigError(
            f"test-fraction={keys.test_fraction}: dataset={keys.dataset} has no use for it; leave "
            "it out."
        )


def source_files(keys: DataKeys) -> list[Path]:
    """The files on this machine that the data set would be read from."""
    return data_set(keys.dataset).files(keys)
