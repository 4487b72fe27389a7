"""Every user's data: simulated from one data set, or from a device's own file."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from corsage.core.arrays import Arrays, Ints
from corsage.core.configuration.key_groups import DataKeys
from corsage.core.errors import DataError
from corsage.core.files import cache_root
from corsage.core.registry import attached
from corsage.core.seeding import generator
from corsage.datasets.data_set import data_set, load_table, source_files
from corsage.datasets.dealing import clustermap, partitions
from corsage.datasets.dealing import data_cache as cache
from corsage.datasets.dealing.dealt import Dealt, check_partition, deal, known_clusters
from corsage.datasets.dealing.split import split_rows
from corsage.datasets.sample_table import Table
from corsage.datasets.shared_keys import CsvKeys, check_clusters
from corsage.datasets.user_data import NO_TESTS, FederatedData

Facts = dict[str, Any]


def simulated(keys: DataKeys, num_users: int, seed: int) -> FederatedData:
    """The data set dealt to users, prepared once a machine and then shared by its processes."""
    check_partition(keys, num_users)
    if keep := data_set(keys.dataset).keep:
        return in_memory(keep(keys), keys, num_users, seed)
    if data_set(keys.dataset).arranged:
        return as_arranged(keys, num_users, seed, cache.marks(source_files(keys)))
    facts = {k: v for k, v in dataclasses.asdict(keys).items() if k != "cache_dir"}
    facts["partition"] = keys.dealing
    files = cache.fingerprint(source_files(keys))
    if keys.cluster_map:
        facts["cluster_map"] = clustermap.digest(keys.cluster_map)
    name = cache.digest({**facts, "num_users": num_users, "seed": seed, "files": files})
    return opened(cache_root(keys.cache_dir) / name, keys, num_users, seed)


def source_marks(keys: DataKeys) -> tuple[cache.Mark, ...]:
    """Marks of a data set's files, which change if the files do."""
    chosen = data_set(keys.dataset)
    files = [] if chosen.keep else chosen.files(keys)
    return cache.marks(files)


@lru_cache(maxsize=4)
def as_arranged(
    keys: DataKeys, num_users: int, seed: int, stamps: tuple[cache.Mark, ...]
) -> FederatedData:
    """Data that are user by user already, or so many users of them; `stamps` tell changed files."""
    arranged = data_set(keys.dataset).arranged
    assert arranged is not None
    own = arranged(keys)
    if keys.validation:
        own = own._replace(bounds=held_back(own.bounds, keys.validation))
    if keys.cluster_map:
        own = own._replace(clusters=clustermap.of(own.users, own.users, keys.cluster_map))
    if not num_users:
        return FederatedData(**own._asdict())
    if num_users > len(own.users):
        raise DataError(f"num-users={num_users}: the data have {len(own.users)} users.")
    rng = generator(seed, "partition", keys.dealing)
    rows = np.sort(rng.choice(len(own.users), num_users, replace=False))
    users = [own.users[row] for row in rows]
    clusters = {user: own.clusters[user] for user in users if user in own.clusters}
    chosen = own._replace(users=users, clusters=clusters, bounds=own.bounds[rows])
    return FederatedData(**chosen._asdict())


def held_back(bounds: Ints, share: float) -> Ints:
    """The bounds with the last training samples of each user, as they lie, in its test's place."""
    start, middle, end = bounds.T
    size = np.maximum(np.round((end - start) * share), 1).astype(np.int64)
    size = np.clip(np.minimum(size, middle - start - 1), 0, None)
    return np.column_stack([start, middle - size, middle])


def in_memory(
    kept: dict[Any, FederatedData], keys: DataKeys, num_users: int, seed: int
) -> FederatedData:
    """Data of this process dealt to users, prepared once and written nowhere."""
    name = (keys, num_users, seed)
    if name not in kept:
        table = load_table(keys)
        facts, arrays = arrange(table, deal(table, keys, num_users, seed), keys, seed)
        kept[name] = made(facts, arrays)
    return kept[name]


def check_users(data: FederatedData) -> None:
    """Refuse users who cannot take part: in a simulation it is the run's own keys that are wrong.

    Who has no training samples can take no part; who has no test samples is judged by nothing, but
    somebody must be. Of devices one without training data is left out, and the others go on.
    """
    if (bad := np.flatnonzero(np.asarray(data.train_sizes) < 1)).size:
        raise DataError(
            f"user {data.users[int(bad[0])]} has no training data: give it more samples, or check "
            "test-fraction."
        )
    if not np.asarray(data.test_sizes).any():
        raise DataError(NO_TESTS)
    if data.num_classes and len(data.y) and (data.y == data.y[0]).all():
        raise DataError(
            "all labels are of one class: there is nothing to tell apart; check label-column."
        )


@lru_cache(maxsize=4)
def opened(folder: Path, keys: DataKeys, num_users: int, seed: int) -> FederatedData:
    """The prepared data in `folder`, which is made first if it is not there."""
    found = cache.read_folder(folder)
    if found is None:
        table = load_table(keys)
        dealt = deal(table, keys, num_users, seed)
        cache.write_folder(folder, *arrange(table, dealt, keys, seed))
        found = cache.read_folder(folder)
    if found is None:
        raise DataError(f"{folder}: cannot be read back; set cache-dir=FOLDER on another disk.")
    return made(*found)


def made(facts: Facts, arrays: Arrays) -> FederatedData:
    """The data out of what was arranged, or kept on disk."""
    columns = attached("tables").read_facts(facts["facts"], 0) if facts["facts"] else None
    lists = {name: tuple(v) for name, v in facts.items() if name in TUPLES and isinstance(v, list)}
    return FederatedData(**{**facts, **arrays, **lists, "facts": columns})


TUPLES = ("notes", "shift", "scale", "classes")
"""Facts that JSON keeps as lists."""


def arrange(table: Table, dealt: Dealt, keys: DataKeys, seed: int) -> tuple[Facts, Arrays]:
    """The fields of `FederatedData`, samples ordered user by user, the training part first."""
    order: list[Ints] = []
    if table.test is None and not (keys.test_fraction or keys.max_train_samples):
        order = [own for part in dealt.parts for own in (part, part[:0])]  # nothing is drawn
    else:
        for user, part in zip(dealt.users, dealt.parts, strict=True):
            split = split_rows(table, part, user, keys, seed)
            order += [part[positions] for positions in split]
    ends = np.cumsum([len(rows) for rows in order]).reshape(-1, 2)
    bounds = np.column_stack([np.concatenate([[0], ends[:-1, 1]]), ends])
    rows = np.concatenate(order)
    facts = {
        "users": dealt.users,
        "clusters": dealt.clusters,
        "num_classes": table.num_classes,
        "shift": table.shift,
        "scale": table.scale,
        "notes": table.notes,
        "held_out": table.test is not None or keys.test_fraction > 0,
        "classes": table.classes,
        "facts": table.facts and table.facts.json(),
    }
    arrays: Arrays = {"x": table.x[rows], "y": table.y[rows], "bounds": bounds}
    if table.vectors is not None:
        arrays["vectors"] = table.vectors
    return facts, arrays


def on_device(path: str, user: str, cluster: str, keys: CsvKeys, seed: int) -> FederatedData:
    """A device's own CSV or NPZ file, whole in memory; `user` and `cluster` may be empty.

    Without a user column the file is `user`'s. With one, it is of several users, of whom `user`
    is picked if given. `num_classes` is what this file shows: other devices may have more. A
    cluster map may name users of other devices.
    """
    check_clusters(keys)
    read = data_set("npz" if path.endswith(".npz") else "csv").read
    assert read is not None
    optional = (*(("user",) if user else ()), *(("cluster",) if cluster else ()))
    table = read(Path(path).expanduser(), keys, optional=optional)
    owner = np.full(len(table.y), user) if table.users is None else table.users
    if not user and table.users is None:
        raise DataError(f"{path}: no user column; set user-column, or the device's user id.")
    users, parts = partitions.natural(owner, 0, generator(seed, "device"))
    if user and user not in users:
        raise DataError(f"{path}: no samples of user {user!r} among its {len(users)} users.")
    chosen = [i for i, name in enumerate(users) if name == user or not user]
    users, parts = [users[i] for i in chosen], [parts[i] for i in chosen]
    clusters = known_clusters(users, parts, table.clusters)
    if keys.cluster_map:
        known = clustermap.read(keys.cluster_map)
        clusters = {name: known[name] for name in users if name in known}
    for name in users if cluster else ():
        if clusters.setdefault(name, cluster) != cluster:
            raise DataError(
                f"{keys.cluster_map or path}: user {name} is in cluster {clusters[name]!r} there, "
                f"but the device says {cluster!r}; correct one of them."
            )
    return made(*arrange(table, Dealt(users, parts, clusters), keys, seed))
