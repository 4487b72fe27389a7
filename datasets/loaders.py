"""The data sets by name. A new one is a file with a `load` like the others', and a line here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from corsage.core.config import DataKeys
from corsage.core.errors import ConfigError, DataError
from corsage.core.keys import flatten, kebab, nearest
from corsage.datasets import (
    chem97,
    cifar,
    csvfile,
    digits,
    donors,
    ellipses,
    femnist,
    hierarchical,
    idx,
    leaf,
    npzfile,
    sent140,
)
from corsage.datasets.table import NUMBERS, Table

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
    "chem97": chem97.load,
    "donors": donors.load,
    "hierarchical": hierarchical.load,
    "ellipses": ellipses.load,
}
FILES: dict[str, Callable[[DataKeys], list[Path]]] = {
    **dict.fromkeys(idx.PUBLISHED, idx.files),
    **dict.fromkeys(cifar.PUBLISHED, cifar.files),
    "femnist": partial(leaf.files, hub=femnist.HUB),
    "sent140": sent140.files,
    "chem97": chem97.files,
}
OWN_FILE = ("csv", "npz")
GENERATED = ("hierarchical", "donors", "ellipses")
# The data sets that say which samples are for testing.
TESTED = ("hierarchical", "ellipses")
# Keys that only some data sets have a use for.
USED_BY: dict[str, tuple[str, ...]] = {
    "data_file": (*OWN_FILE, "donors"),
    "cluster_column": OWN_FILE,
    "feature_columns": ("csv", "chem97"),
    "labels": (*OWN_FILE, *NUMBERS),
    "femnist_classes": ("femnist",),
    "embeddings": ("sent140",),
    "data_seed": GENERATED,
    "num_clusters": ("hierarchical", "ellipses"),
    "users_per_cluster": GENERATED,
    "samples_per_user": GENERATED,
    "num_features": ("hierarchical",),
    "noise": ("hierarchical",),
    "user_variance": ("hierarchical",),
    "cluster_variance": ("hierarchical",),
    "test_fraction": tuple(name for name in LOADERS if name not in TESTED),
}
CHECKS: dict[str, Callable[[DataKeys], None]] = {
    "chem97": chem97.check,
    "donors": donors.check,
    "ellipses": ellipses.check,
    "hierarchical": hierarchical.check,
}


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
    words, idle = flatten(keys), flatten(DataKeys())
    for name, users in USED_BY.items():
        key = kebab(name)
        if words[key] != idle[key] and keys.dataset not in users:
            others = "" if name == "test_fraction" else f", or set dataset={', '.join(users)}"
            raise ConfigError(
                f"{key}={words[key]}: dataset={keys.dataset} has no use for it; "
                f"leave it out{others}."
            )
    check_clusters(keys)
    if keys.dataset in CHECKS:
        CHECKS[keys.dataset](keys)


def check_clusters(keys: DataKeys) -> None:
    """Refuse two sources of the users' clusters."""
    if keys.cluster_map and keys.cluster_column:
        raise ConfigError(
            f"cluster-map={keys.cluster_map}: cluster-column={keys.cluster_column} says the "
            "clusters too; leave one of them out."
        )


def source_files(keys: DataKeys) -> list[Path]:
    """The files on this machine that the data set would be read from."""
    if keys.dataset in FILES:
        return FILES[keys.dataset](keys)
    if not keys.data_file:
        return []
    path = Path(keys.data_file).expanduser()
    if not path.is_file():
        raise DataError(f"data-file={keys.data_file}: no such file.")
    return [path]
