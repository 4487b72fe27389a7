"""Data sets from the Hugging Face hub, by the library that `flwr-datasets` brings along."""

from __future__ import annotations

import importlib
import logging
from typing import Any

import numpy as np

from corsage.core.arrays import Array
from corsage.core.errors import DataError

log = logging.getLogger("corsage")


def splits(name: str, absent: DataError) -> Any:
    """The data set's splits by name; `absent` if the library is not installed."""
    try:
        # Not `import datasets`: where it is not installed, that finds our own folder.
        load_dataset: Any = getattr(importlib.import_module("datasets"), "load_dataset", None)
    except ImportError:
        load_dataset = None
    if load_dataset is None:
        raise absent
    log.info("downloading %s from the Hugging Face hub", name)
    try:
        return load_dataset(name)
    except Exception as error:  # the hub's library raises many kinds, most of them undocumented
        cause = " ".join(str(error).split())[:200]
        raise DataError(f"{absent} The hub was tried: {type(error).__name__}: {cause}") from error


def column(rows: Any, name: str) -> Array:
    """One column of a split as an array."""
    return np.asarray(rows.with_format("numpy")[name][:])


def texts(rows: Any, name: str) -> list[str]:
    """One column of texts; as an array each would take as much room as the longest."""
    return list(rows[name][:])
