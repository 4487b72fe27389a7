"""Dealing a data set to users as `partition` says, and what is known of the users' clusters.

Of a Dirichlet distribution draws are of labels a user, or of users a class.
"""

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
from corsage.datasets.dealing import clustermap, partitions
from corsage.datasets.dealing.partitions import LEAST_SAMPLES, enough, pool
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
        return by_user(labels, num_users, rng, alpha=keys.alpha)
    if keys.dealing == BY_CLASS:
        return by_class(labels, num_users, rng, alpha=keys.alpha, least=keys.min_samples)
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


USUAL_LEAST = 10  # samples that `by_class` sees to, as the published splits do
SCALING_STEPS = 200  # of the scaling in `by_user`
DRAWS = 2000  # of `by_class`, until every user has enough


def by_user(
    labels: Ints, num_users: int, rng: np.random.Generator, *, alpha: float = 0.5
) -> list[Ints]:
    """Label shares of each user from Dirichlet(alpha); equal sizes within one, all samples dealt.

    The drawn shares would need more of some classes than there are, so they are scaled, by class
    and by user in turn, until the classes' sizes and the users' sizes fit (Sinkhorn's procedure,
    a fixed number of steps). Users of a class in demand thus all give way alike. What whole
    numbers leave over is dealt one by one to the largest remainders.
    """
    enough(len(labels), num_users)
    present, counts = np.unique(labels, return_counts=True)
    sizes = np.full(num_users, len(labels) // num_users)
    sizes[rng.permutation(num_users)[: len(labels) % num_users]] += 1
    # Beyond 1e6 shares are equal to a thousandth, and the draw itself would overflow.
    shares = rng.dirichlet(np.full(len(present), min(alpha, 1e6)), num_users)
    wanted = scaled(np.maximum(shares, 1e-9), sizes, counts)
    taken = whole(wanted, sizes, counts, rng)
    return pieces(pool(labels, present, rng), taken)


def by_class(
    labels: Ints, num_users: int, rng: np.random.Generator, *, alpha: float = 0.5, least: int = 0
) -> list[Ints]:
    """Each class dealt over the users by Dirichlet(alpha); sizes as they come, all samples dealt.

    The split of most published tables (Yurochkin et al. 2019, Li et al. 2022): who has a mean
    user's samples already gets none of the classes still to come, and all is drawn again until
    each user has `least` samples; 0: ten, or half a mean user's where that is less.
    """
    enough(len(labels), num_users)
    present, counts = np.unique(labels, return_counts=True)
    least = least or min(USUAL_LEAST, len(labels) // num_users // 2)
    for _ in range(DRAWS):
        taken = np.zeros((num_users, len(present)), np.int64)
        for c in range(len(present)):
            taken[:, c] = shared_out(counts[c], taken.sum(axis=1), len(labels), alpha, rng)
        if taken.sum(axis=1).min() >= max(least, LEAST_SAMPLES):
            return pieces(pool(labels, present, rng), taken)
    raise DataError(
        f"partition=dirichlet-by-class: none of {DRAWS} draws gives each of {num_users} users "
        f"{least} samples; set a larger alpha, fewer num-users or a lower min-samples."
    )


def shared_out(count: int, sizes: Ints, total: int, alpha: float, rng: np.random.Generator) -> Ints:
    """Samples of one class for each user, of those that have less than the mean so far."""
    shares = np.maximum(rng.dirichlet(np.full(len(sizes), min(alpha, 1e6))), 1e-300)
    shares = np.cumsum(shares * (sizes < total / len(sizes)))
    ends = np.rint(shares / shares[-1] * count).astype(np.int64)
    return np.asarray(np.diff(ends, prepend=0))


def pieces(pools: list[Ints], taken: Ints) -> list[Ints]:
    """The positions of each user, who takes so many (users, classes) of each class's pool."""
    ends = np.cumsum(taken, axis=0)
    return [
        np.sort(np.concatenate([p[e - t : e] for p, e, t in zip(pools, end, took, strict=True)]))
        for end, took in zip(ends, taken, strict=True)
    ]


def scaled(shares: NDArray[np.float64], sizes: Ints, counts: Ints) -> NDArray[np.float64]:
    """`shares` (users, classes) scaled so that rows sum to sizes and columns to counts, about.

    No row and no column of the result exceeds its sum.
    """
    wanted = shares.copy()
    for _ in range(SCALING_STEPS):
        wanted *= (sizes / wanted.sum(axis=1))[:, None]
        wanted *= counts / wanted.sum(axis=0)
    wanted *= np.minimum(1.0, sizes / wanted.sum(axis=1))[:, None]
    return wanted


def whole(wanted: NDArray[np.float64], sizes: Ints, counts: Ints, rng: np.random.Generator) -> Ints:
    """`wanted` in whole numbers, with rows of exactly `sizes` and columns of at most `counts`."""
    taken = np.floor(wanted).astype(np.int64)
    stock = counts - taken.sum(axis=0)
    for user in rng.permutation(len(sizes)):
        short = int(sizes[user] - taken[user].sum())
        claim = wanted[user] - taken[user] + rng.random(len(counts)) * 1e-9
        while short > 0:
            c = int(np.argmax(np.where(stock > 0, claim, -np.inf)))
            # Once no claim is left, the user gets a block of the most plentiful class.
            c = c if claim[c] > 0 else int(np.argmax(stock))
            many = 1 if claim[c] > 0 else min(short, int(stock[c]))
            taken[user, c] += many
            stock[c] -= many
            claim[c] -= many
            short -= many
    return taken
