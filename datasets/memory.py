"""Data in the memory of this process: what `simulate(data=...)` and `fit(...)` are given.

Nothing of them is written to disk, and no other process sees them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from corsage.core.configuration.held_objects import held
from corsage.core.errors import ConfigError, DataError
from corsage.datasets.data_set import DataSet
from corsage.datasets.sample_table import Table
from corsage.datasets.shared_keys import FileKeys, LabelKeys, TableKeys

ONLY = "simulate(data=...) and fit(...) set it, in a process of Python; here name a data set"


@dataclass(frozen=True)
class MemoryKeys(TableKeys, LabelKeys, FileKeys):
    """Keys of data in memory; `data-file` is the name that they have meanwhile."""

    @property
    def usual(self) -> str:
        """Data that say whose they are keep their users."""
        found = held(self.data_file)
        if found is None or found.thing.table.users is not None:
            return "natural"
        return "shards" if found.thing.table.num_classes else "iid"


@dataclass(frozen=True, eq=False)
class Memory:
    """A table, and what was prepared of it: this lasts as long as the table does."""

    table: Table
    prepared: dict[Any, Any] = field(default_factory=dict)


def memory_of(keys: MemoryKeys) -> Memory:
    """The data that the keys name."""
    if not keys.data_file:
        raise ConfigError(f"dataset=memory: {ONLY}.")
    found = held(keys.data_file)
    if found is None or not isinstance(found.thing, Memory):
        raise DataError(
            "dataset=memory: these data are in the memory of another process, or are gone; they "
            "are for simulate() and fit() alone. On Ray and on devices: a file (dataset=csv or "
            "npz), or make_client_app(data=...)."
        )
    return found.thing


def table_of(keys: MemoryKeys) -> Table:
    """The table that the keys name."""
    return memory_of(keys).table


def prepared_of(keys: MemoryKeys) -> dict[Any, Any]:
    """The prepared data of the table that the keys name."""
    return memory_of(keys).prepared


def check(keys: MemoryKeys) -> None:
    """Refuse data that are not there, and users of their own that they have not."""
    if table_of(keys).users is None and keys.dealing == "natural":
        raise ConfigError("partition=natural: the data do not say whose they are (user=...).")
    refuse_gaps(keys)


def refuse_gaps(keys: MemoryKeys) -> None:
    """Refuse missing cells, unless it is said what is to be done about them."""
    table = table_of(keys)
    if table.facts is None or keys.missing != "refuse" or not np.isnan(table.x).any():
        return
    row, column = np.argwhere(np.isnan(table.x))[0].tolist()
    raise DataError(
        f"data: row {row}, column {table.facts.names[column]!r}: missing; fill it in, or set "
        "missing=mean or flag."
    )


DATASET = DataSet(table_of, MemoryKeys, check=check, users="either", keep=prepared_of)
