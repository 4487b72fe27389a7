"""Dealing a data set to users as `partition` says, and what is known of the users' clusters."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from corsage.core.arrays import Ints
from corsage.core.configuration.key_groups import DataKeys
from corsage.core.errors import ConfigError, DataError
from corsage.core.registry import DATASETS
from corsage.core.seeding import generator
from corsage.datasets.data_set import check_keys, data_set
from corsage.datasets.dealing import clustermap, dirichlet, partitions
from corsage.datasets.sample_table import Table
from corsage.datasets.shared_keys import ColumnKeys, LabelKeys

# The partitions with an option for lognormal sizes, and those that do not ask for labels.
SIZED = ("iid", "shards", "classes", "consecutive")
LABEL_FREE = ("iid", "natural")
BY_CLASS = "dirichlet-by-class"


class Dealt(NamedTuple):
    """The users, the samples of a table that each has, and the clusters that are known."""

    users: list[str]
    parts: list[Ints]
    clusters: dict[str, str]


def check_partition(keys: DataKeys, num_users: int) -> None:
    """Refuse combinations of keys that cannot be meant."""
    check_keys(keys)
    if keys.dealing == "natural":
        check_own_users(keys)
    else:
        check_dealt_users(keys, num_users)
    check_sizes(keys)


def check_own_users(keys: DataKeys) -> None:
    """Refuse to take the data's own users if there are none."""
    nameless = isinstance(keys, ColumnKeys) and not keys.user_column
    if data_set(keys.dataset).users == "dealt" or nameless:
        others = [name for name in DATASETS if data_set(name).users != "dealt"]
        raise ConfigError(
            f"partition=natural: dataset={keys.dataset} has no users of its own; set another "
            f"partition, or dataset={', '.join(others)} (csv and npz with their user-column)."
        )


def check_dealt_users(keys: DataKeys, num_users: int) -> None:
    """Refuse to deal samples anew if that cannot be done."""
    if data_set(keys.dataset).users == "own":
        raise ConfigError(
            f"partition={keys.dealing}: dataset={keys.dataset} has users of its own; set "
            "partition=natural num-users=0."
        )
    if isinstance(keys, LabelKeys) and keys.numbers and keys.dealing not in LABEL_FREE:
        raise ConfigError(
            f"partition={keys.dealing}: it deals classes, and labels=numbers has none; set "
            "partition=iid, or partition=natural num-users=0."
        )
    if num_users == 0:
        raise ConfigError(f"num-users=0: partition={keys.dealing} needs a number of users.")
    if isinstance(keys, ColumnKeys) and keys.cluster_column:
        raise ConfigError(
            f"cluster-column={keys.cluster_column}: with partition={keys.dealing} a user's "
            "samples come from several clusters; set partition=natural."
        )


def check_sizes(keys: DataKeys) -> None:
    """Refuse keys of sizes that the partition has no use for."""
    if keys.size_sigma and keys.dealing not in SIZED:
        raise ConfigError(
            f"size-sigma={keys.size_sigma:g}: only for partition={', '.join(SIZED)}, "
            f"not {keys.dealing}; leave it out."
        )
    for name, value, idle in (
        ("mean-samples", keys.mean_samples, keys.dealing == "natural"),
        ("min-samples", keys.min_samples, keys.dealing not in ("natural", BY_CLASS)),
    ):
        if value and idle:
            raise ConfigError(
                f"{name}={value}: of no use with partition={keys.dealing}; leave it out."
            )


def two_meanings(keys: DataKeys) -> list[str]:
    """A note on `dirichlet`, by which people mean either of two splits."""
    if keys.partition != "dirichlet":
        return []
    return [
        "partition=dirichlet: users of equal sizes, as dirichlet-by-user says (Hsu et al. 2019); "
        f"Dir({keys.alpha:g}) of most published tables deals each class: {BY_CLASS}"
    ]


def deal(table: Table, keys: DataKeys, num_users: int, seed: int) -> Dealt:
    """Deal the samples to users as `partition` says; the clusters are the map's, if one is set."""
    if keys.dealing == "natural":
        assert table.users is not None  # the loader saw to it that there is a user column
        rng = generator(seed, "partition", keys.dealing)
        users, parts = partitions.natural(table.users, num_users, rng, least=keys.min_samples)
        dealt = Dealt(users, parts, known_clusters(users, parts, table.clusters))
        everybody: Iterable[str] = table.users  # the map may name some that are left out of the run
    else:
        dealt = deal_anew(table, keys, num_users, seed)
        everybody = dealt.users
    if keys.cluster_map:
        clusters = clustermap.of(dealt.users, everybody, keys.cluster_map)
        dealt = dealt._replace(clusters=clusters)
    return dealt


def deal_anew(table: Table, keys: DataKeys, num_users: int, seed: int) -> Dealt:
    """Deal the samples to users that are numbered from 0, whoever had them before."""
    if table.test is not None:
        raise DataError(
            f"partition={keys.dealing}: the data say which samples are for testing (npz: its "
            "array test), user by user; set partition=natural num-users=0."
        )
    if table.clusters is None:
        parts = deal_pool(table.strata, keys, num_users, seed)
        return Dealt([str(i) for i in range(num_users)], parts, {})
    # Each cluster's samples to users of its own, equally many within one.
    dealt = Dealt([], [], {})
    names = list(dict.fromkeys(table.clusters.tolist()))
    for i, name in enumerate(names):
        rows = np.flatnonzero(table.clusters == name)
        many = num_users // len(names) + (i < num_users % len(names))
        parts = deal_pool(table.strata[rows], keys, many, seed, name)
        users = [str(len(dealt.users) + u) for u in range(many)]
        dealt.users.extend(users)
        dealt.parts.extend(rows[part] for part in parts)
        dealt.clusters.update(dict.fromkeys(users, name))
    return dealt


def deal_pool(labels: Ints, keys: DataKeys, num_users: int, seed: int, *purpose: str) -> list[Ints]:
    """Deal a pool of samples, or `mean-samples` a user of it."""
    rng = generator(seed, "partition", keys.dealing, *purpose)
    if keys.mean_samples:
        drawn = generator(seed, "mean-samples", *purpose)
        rows = partitions.thinned(labels, num_users, keys.mean_samples, drawn)
        whole = dataclasses.replace(keys, mean_samples=0)
        return [rows[part] for part in deal_pool(labels[rows], whole, num_users, seed, *purpose)]
    if keys.dealing == "iid":
        return partitions.iid(labels, num_users, rng, size_sigma=keys.size_sigma)
    if keys.dealing == "dirichlet":
        return dirichlet.by_user(labels, num_users, rng, alpha=keys.alpha)
    if keys.dealing == BY_CLASS:
        return dirichlet.by_class(labels, num_users, rng, alpha=keys.alpha, least=keys.min_samples)
    labelled = {
        "shards": partitions.shards,
        "classes": partitions.classes,
        "consecutive": partitions.consecutive,
    }[keys.dealing]
    s, sigma = keys.classes_per_user, keys.size_sigma
    return labelled(labels, num_users, rng, classes_per_user=s, size_sigma=sigma)


def known_clusters(
    users: list[str], parts: list[Ints], clusters: NDArray[np.str_] | None
) -> dict[str, str]:
    """The cluster of each user for whom one is given, which must be the same in all its samples."""
    if clusters is None:
        return {}
    sizes = [len(part) for part in parts]
    rows, firsts = np.concatenate(parts), np.cumsum([0, *sizes[:-1]])
    of_all = clusters[rows]
    own = of_all[firsts]
    if (wrong := np.flatnonzero(of_all != np.repeat(own, sizes))).size:
        place = int(np.searchsorted(firsts, wrong[0], side="right")) - 1
        names = ", ".join(map(repr, np.unique(clusters[parts[place]]).tolist()))
        raise DataError(
            f"user {users[place]}: samples in the clusters {names}; "
            "a user has one cluster: correct the cluster column."
        )
    return {user: word for user, word in zip(users, own.tolist(), strict=True) if word}
