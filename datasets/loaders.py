"""The data sets by name. A new one is a file with a `load` like the others', and a line here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from corsage.app.config import DataKeys
from corsage.app.errors import ConfigError, DataError
from corsage.app.keys import nearest
from corsage.datasets import cifar, csvfile, digits, femnist, idx, leaf, npzfile, sent140
from corsage.datasets.table import Table

LOADERS: dict[str, Callable[[DataKeys], Table]] = {
    "digits": digits.load,
    "mnist": idx.load,
    "fashion-mnist": idx.load,
    "cifar10": cifar.load,
    "cifar100": cifar.load,
    "femnist": femnist.load,
    "sent140": sent140.load,
    "csv": csvfile.load,
    "npz": npzfile.load,
}
OWN_FILE = ("csv", "npz")


def load_table(keys: DataKeys) -> Table:
    """The whole data set that the keys name."""
    check_keys(keys)
    return LOADERS[keys.dataset](keys)


def check_keys(keys: DataKeys) -> None:
    """Refuse keys that the data set has no use for: they would be ignored in silence."""
    if keys.dataset not in LOADERS:
        raise ConfigError(
            f"dataset={keys.dataset}: no such data set.{nearest(keys.dataset, LOADERS)}"
        )
    if keys.dataset in OWN_FILE and not keys.data_file:
        raise ConfigError(f"dataset={keys.dataset}: needs data-file=FILE.{keys.dataset}.")
    if keys.dataset not in OWN_FILE:
        for name, value in (
            ("data-file", keys.data_file),
            ("cluster-column", keys.cluster_column),
        ):
            if value:
                raise ConfigError(
                    f"{name}={value}: dataset={keys.dataset} has none; "
                    "leave it out, or set dataset=csv or dataset=npz."
                )
    for name, value, idle, dataset in (
        ("femnist-classes", keys.femnist_classes, DataKeys.femnist_classes, "femnist"),
        ("embeddings", keys.embeddings, DataKeys.embeddings, "sent140"),
    ):
        if value != idle and keys.dataset != dataset:
            raise ConfigError(
                f"{name}={value}: dataset={keys.dataset} has no use for it; leave it out, or set "
                f"dataset={dataset}."
            )


def source_files(keys: DataKeys) -> list[Path]:
    """The files on this machine that the data set would be read from."""
    if keys.dataset in idx.PUBLISHED:
        return idx.files(keys)
    if keys.dataset in cifar.PUBLISHED:
        return cifar.files(keys)
    if keys.dataset == "femnist":
        return leaf.files(keys, femnist.HUB)
    if keys.dataset == "sent140":
        return sent140.files(keys)
    if not keys.data_file:
        return []
    path = Path(keys.data_file).expanduser()
    if not path.is_file():
        raise DataError(f"data-file={keys.data_file}: no such file.")
    return [path]
