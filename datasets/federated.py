"""Every user's data: simulated from one data set, or from a device's own file."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from corsage.app.config import DataKeys
from corsage.app.errors import ConfigError, DataError
from corsage.app.seeding import generator
from corsage.datasets import cache, csvfile, npzfile, partitions
from corsage.datasets.loaders import check_keys, load_table, source_files
from corsage.datasets.split import split_user
from corsage.datasets.table import Array, Floats, Ints, Table

Facts = dict[str, Any]
Arrays = dict[str, Array]
# The partitions with an option for lognormal sizes, and the data sets with users of their own.
SIZED = ("iid", "shards", "classes", "consecutive")
WITH_USERS = ("csv", "npz", "femnist", "sent140")


@dataclass(frozen=True, eq=False)
class UserData:
    """One user's samples, raw: `model_input` makes the model's input of them.

    In a simulation the arrays are read-only views of a file mapped into memory.
    """

    user: str
    cluster: str | None
    x_train: Array
    y_train: Ints
    x_test: Array
    y_test: Ints


@dataclass(frozen=True, eq=False)
class FederatedData:
    """All users that are hosted here. User i's rows of `x` and `y` are given by `bounds[i]`:
    start, end of the training part (where its test part starts), end. With `vectors`, `x` are
    numbers of its rows, which are the model's input.
    """

    users: list[str]
    clusters: dict[str, str]
    num_classes: int
    shift: float
    scale: float
    x: Array
    y: Ints
    bounds: Ints
    vectors: Floats | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample as the model sees it."""
        return tuple(self.x.shape[1:]) + (() if self.vectors is None else self.vectors.shape[1:])

    @cached_property
    def train_sizes(self) -> Ints:
        """Training samples of each of `users`."""
        return self.bounds[:, 1] - self.bounds[:, 0]

    @cached_property
    def test_sizes(self) -> Ints:
        """Test samples of each of `users`."""
        return self.bounds[:, 2] - self.bounds[:, 1]

    @cached_property
    def index(self) -> dict[str, int]:
        """Each user's place in `users`."""
        return {user: i for i, user in enumerate(self.users)}

    def __getitem__(self, user: str) -> UserData:
        if user not in self.index:
            raise DataError(f"user {user}: has no data here; {len(self.users)} other users do.")
        start, middle, end = (int(b) for b in self.bounds[self.index[user]])
        train, test = slice(start, middle), slice(middle, end)
        x, y = self.x, self.y
        return UserData(user, self.clusters.get(user), x[train], y[train], x[test], y[test])


class Dealt(NamedTuple):
    """Who has which samples of a table, and the clusters that are known."""

    users: list[str]
    parts: list[Ints]
    clusters: dict[str, str]


def simulated(keys: DataKeys, num_users: int, seed: int) -> FederatedData:
    """The data set dealt to users, prepared once a machine and then shared by its processes."""
    check_partition(keys, num_users)
    facts = {k: v for k, v in dataclasses.asdict(keys).items() if k != "cache_dir"}
    files = cache.fingerprint(source_files(keys))
    name = cache.digest({**facts, "num_users": num_users, "seed": seed, "files": files})
    return opened(cache.cache_root(keys.cache_dir) / name, keys, num_users, seed)


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
    facts, arrays = found
    return FederatedData(**{**facts, **arrays})


def check_partition(keys: DataKeys, num_users: int) -> None:
    """Refuse combinations of keys that cannot be meant."""
    check_keys(keys)
    if keys.partition == "natural":
        if keys.dataset not in WITH_USERS or not keys.user_column:
            raise ConfigError(
                f"partition=natural: dataset={keys.dataset} has no users of its own; set another "
                "partition, or dataset=femnist or sent140, or csv or npz with its user-column."
            )
    elif num_users == 0:
        raise ConfigError(f"num-users=0: partition={keys.partition} needs a number of users.")
    elif keys.cluster_column:
        raise ConfigError(
            f"cluster-column={keys.cluster_column}: with partition={keys.partition} a user's "
            "samples come from several clusters; set partition=natural."
        )
    if keys.size_sigma and keys.partition not in SIZED:
        raise ConfigError(
            f"size-sigma={keys.size_sigma:g}: only for partition={', '.join(SIZED)}, "
            f"not {keys.partition}; leave it out."
        )
    pooled = keys.partition != "natural"
    for name, value, idle in (
        ("mean-samples", keys.mean_samples, not pooled),
        ("min-samples", keys.min_samples, pooled),
    ):
        if value and idle:
            raise ConfigError(
                f"{name}={value}: of no use with partition={keys.partition}; leave it out."
            )


def deal(table: Table, keys: DataKeys, num_users: int, seed: int) -> Dealt:
    """Deal the samples to users as `partition` says."""
    if keys.partition == "natural":
        assert table.users is not None  # the loader saw to it that there is a user column
        rng = generator(seed, "partition", keys.partition)
        users, parts = partitions.natural(table.users, num_users, rng, least=keys.min_samples)
        return Dealt(users, parts, known_clusters(users, parts, table.clusters))
    if table.clusters is None:
        parts = deal_pool(table.y, keys, num_users, seed)
        return Dealt([str(i) for i in range(num_users)], parts, {})
    # Each cluster's samples to users of its own, equally many within one.
    dealt = Dealt([], [], {})
    names = list(dict.fromkeys(table.clusters.tolist()))
    for i, name in enumerate(names):
        rows = np.flatnonzero(table.clusters == name)
        many = num_users // len(names) + (i < num_users % len(names))
        parts = deal_pool(table.y[rows], keys, many, seed, name)
        users = [str(len(dealt.users) + u) for u in range(many)]
        dealt.users.extend(users)
        dealt.parts.extend(rows[part] for part in parts)
        dealt.clusters.update(dict.fromkeys(users, name))
    return dealt


def deal_pool(labels: Ints, keys: DataKeys, num_users: int, seed: int, *purpose: str) -> list[Ints]:
    """Deal a pool of samples, or `mean-samples` a user of it."""
    rng = generator(seed, "partition", keys.partition, *purpose)
    if keys.mean_samples:
        drawn = generator(seed, "mean-samples", *purpose)
        rows = partitions.thinned(labels, num_users, keys.mean_samples, drawn)
        whole = dataclasses.replace(keys, mean_samples=0)
        return [rows[part] for part in deal_pool(labels[rows], whole, num_users, seed, *purpose)]
    if keys.partition == "iid":
        return partitions.iid(labels, num_users, rng, size_sigma=keys.size_sigma)
    if keys.partition == "dirichlet":
        return partitions.dirichlet(labels, num_users, rng, alpha=keys.alpha)
    labelled = {
        "shards": partitions.shards,
        "classes": partitions.classes,
        "consecutive": partitions.consecutive,
    }[keys.partition]
    s, sigma = keys.classes_per_user, keys.size_sigma
    return labelled(labels, num_users, rng, classes_per_user=s, size_sigma=sigma)


def known_clusters(
    users: list[str], parts: list[Ints], clusters: NDArray[np.str_] | None
) -> dict[str, str]:
    """The cluster of each user for whom one is given, which must be the same in all its samples."""
    if clusters is None:
        return {}
    known = {}
    for user, part in zip(users, parts, strict=True):
        own = np.unique(clusters[part])
        if len(own) > 1:
            raise DataError(
                f"user {user}: samples in the clusters {', '.join(map(repr, own.tolist()))}; "
                "a user has one cluster: correct the cluster column."
            )
        if own[0]:
            known[user] = str(own[0])
    return known


def arrange(table: Table, dealt: Dealt, keys: DataKeys, seed: int) -> tuple[Facts, Arrays]:
    """The fields of `FederatedData`, samples ordered user by user, the training part first."""
    order: list[Ints] = []
    for user, part in zip(dealt.users, dealt.parts, strict=True):
        split = split_user(
            table.y[part],
            user,
            test_fraction=keys.test_fraction,
            max_train_samples=keys.max_train_samples,
            seed=seed,
        )
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
    }
    arrays: Arrays = {"x": table.x[rows], "y": table.y[rows], "bounds": bounds}
    if table.vectors is not None:
        arrays["vectors"] = table.vectors
    return facts, arrays


def on_device(path: str, user: str, cluster: str, keys: DataKeys, seed: int) -> FederatedData:
    """A device's own CSV or NPZ file, whole in memory; `user` and `cluster` may be empty.

    Without a user column the file is `user`'s. With one, it is of several users, of whom `user`
    is picked if given. `num_classes` is what this file shows: other devices may have more.
    """
    reader = npzfile if path.endswith(".npz") else csvfile
    optional = (*(("user",) if user else ()), *(("cluster",) if cluster else ()))
    table = reader.read(Path(path).expanduser(), keys, optional=optional)
    owner = np.full(len(table.y), user) if table.users is None else table.users
    if not user and table.users is None:
        raise DataError(f"{path}: no user column; set user-column, or the device's user id.")
    users, parts = partitions.natural(owner, 0, generator(seed, "device"))
    if user and user not in users:
        raise DataError(f"{path}: no samples of user {user!r} among its {len(users)} users.")
    chosen = [i for i, name in enumerate(users) if name == user or not user]
    users, parts = [users[i] for i in chosen], [parts[i] for i in chosen]
    clusters = known_clusters(users, parts, table.clusters)
    for name in users if cluster else ():
        if clusters.setdefault(name, cluster) != cluster:
            raise DataError(
                f"{path}: user {name} is in cluster {clusters[name]!r} there, but the device says "
                f"{cluster!r}; correct one of them."
            )
    facts, arrays = arrange(table, Dealt(users, parts, clusters), keys, seed)
    return FederatedData(**{**facts, **arrays})
