"""Dealing a pool of labelled samples to users: pure functions of labels, number of users, rng.

Each returns one sorted array of sample positions a user; no sample is dealt twice, and no user
gets fewer than two (one to train on, one to test on). None of them can hang.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from corsage.core.arrays import Ints
from corsage.core.errors import DataError
from corsage.datasets.sample_table import different

LEAST_SAMPLES = 2  # samples a user


def iid(
    labels: Ints, num_users: int, rng: np.random.Generator, *, size_sigma: float = 0.0
) -> list[Ints]:
    """Samples at random, equally many a user within one, or in proportion to lognormal sizes."""
    enough(len(labels), num_users)
    sizes = lognormal(num_users, size_sigma, rng)
    everything = rng.permutation(len(labels))
    return hand_out([everything], np.zeros((num_users, 1), np.int64), sizes, LEAST_SAMPLES)


def shards(
    labels: Ints,
    num_users: int,
    rng: np.random.Generator,
    *,
    classes_per_user: int = 2,
    size_sigma: float = 0.0,
) -> list[Ints]:
    """FedRep's partition: S n / C shards a class, their shuffled labels dealt to users, S each.

    Shards of one user may be of one class, so it has at most S classes. If S n / C is no whole
    number, some classes, drawn at random, are cut into one shard more than others. A class with
    too few samples for its shards is cut into fewer, and the other classes into more. Lognormal
    sizes: a class is cut in proportion to its users' sizes. No sample is dropped.
    """
    enough(len(labels), num_users)
    total = num_users * classes_per_user
    least = LEAST_SAMPLES if classes_per_user == 1 else 1
    present, counts = np.unique(labels, return_counts=True)
    if (counts // least).sum() < total:
        raise DataError(
            f"partition=shards: {total} shards (num-users x classes-per-user) of at least {least} "
            f"sample(s) cannot be cut from {len(labels)} samples; lower num-users or "
            "classes-per-user."
        )
    cuts = quotas(counts // least, total, rng)
    dealt = rng.permutation(np.repeat(np.arange(len(present)), cuts)).reshape(num_users, -1)
    sizes = lognormal(num_users, size_sigma, rng)
    return hand_out(pool(labels, present, rng), dealt, sizes, least)


def classes(
    labels: Ints,
    num_users: int,
    rng: np.random.Generator,
    *,
    classes_per_user: int = 2,
    size_sigma: float = 0.0,
) -> list[Ints]:
    """Exactly S distinct classes a user, each class split evenly among the users that have it.

    All classes have equally many users within one, but for those with too few samples for that.
    If there are fewer places (S n) than classes, classes drawn at random are left out.
    """
    enough(len(labels), num_users)
    present, counts = np.unique(labels, return_counts=True)
    if classes_per_user > len(present):
        raise DataError(
            f"partition=classes: classes-per-user={classes_per_user}, but the data have "
            f"{len(present)} classes; set at most that."
        )
    total = num_users * classes_per_user
    least = LEAST_SAMPLES if classes_per_user == 1 else 1
    most = np.minimum(counts // least, num_users)
    if most.sum() < total:
        raise DataError(
            f"partition=classes: too few samples for {num_users} users with {classes_per_user} "
            f"distinct classes each (rarest class: {counts.min()} samples); lower num-users or "
            "classes-per-user, or set partition=shards."
        )
    left = quotas(most, total, rng)
    dealt = np.empty((num_users, classes_per_user), np.int64)
    for user in range(num_users):
        # Taking the classes with most places left never leaves one with more places than users
        # still to come, so the last user finds S distinct classes too (Gale-Ryser).
        dealt[user] = np.argsort(left + rng.random(len(left)))[-classes_per_user:]
        left[dealt[user]] -= 1
    sizes = lognormal(num_users, size_sigma, rng)
    return hand_out(pool(labels, present, rng), rng.permutation(dealt), sizes, least)


def consecutive(
    labels: Ints,
    num_users: int,
    rng: np.random.Generator,
    *,
    classes_per_user: int = 3,
    size_sigma: float = 0.0,
) -> list[Ints]:
    """S consecutive classes a user, cyclically (FedRep's FEMNIST, after Li et al. 2020).

    Every class is the first one of equally many users within one, and is split among its users
    evenly, or in proportion to their lognormal sizes.
    """
    enough(len(labels), num_users)
    present, counts = np.unique(labels, return_counts=True)
    if classes_per_user > len(present):
        raise DataError(
            f"partition=consecutive: classes-per-user={classes_per_user}, but the data have "
            f"{len(present)} classes; set at most that."
        )
    first = rng.permutation(num_users) % len(present)
    dealt = (first[:, None] + np.arange(classes_per_user)) % len(present)
    least = LEAST_SAMPLES if classes_per_user == 1 else 1
    if (counts < least * np.bincount(dealt.ravel(), minlength=len(present))).any():
        raise DataError(
            f"partition=consecutive: too few samples of some classes for {num_users} users "
            f"(rarest class: {counts.min()} samples); lower num-users or classes-per-user."
        )
    sizes = lognormal(num_users, size_sigma, rng)
    return hand_out(pool(labels, present, rng), dealt, sizes, least)


def thinned(labels: Ints, num_users: int, mean: int, rng: np.random.Generator) -> Ints:
    """Positions of `mean` samples a user, drawn at random, classes as evenly as they allow."""
    total = num_users * mean
    if total > len(labels):
        raise DataError(
            f"mean-samples={mean}: {num_users} users would need {total} samples, there are "
            f"{len(labels)}; set at most {len(labels) // num_users}, or fewer num-users."
        )
    present, counts = np.unique(labels, return_counts=True)
    places = quotas(counts, total, rng)
    pools = pool(labels, present, rng)
    return np.sort(np.concatenate([p[:many] for p, many in zip(pools, places, strict=True)]))


def natural(
    users: NDArray[np.str_], num_users: int, rng: np.random.Generator, *, least: int = 0
) -> tuple[list[str], list[Ints]]:
    """The data's own users with their samples: all (0), or so many drawn of those with two.

    Users with fewer than `least` samples are left out.
    """
    ids, codes = different(users)
    counts = np.bincount(codes)
    parts = np.split(np.argsort(codes, kind="stable"), np.cumsum(counts)[:-1])
    chosen = np.flatnonzero(counts >= least)
    if not len(chosen):
        raise DataError(
            f"min-samples={least}: no user has so many samples, at most {counts.max()}; lower it."
        )
    if num_users:
        least = max(least, LEAST_SAMPLES)
        chosen = np.flatnonzero(counts >= least)
        if len(chosen) < num_users:
            raise DataError(
                f"num-users={num_users}: the data have {len(chosen)} users with at least {least} "
                "samples; set num-users=0 to take all users."
            )
        chosen = rng.choice(chosen, num_users, replace=False)
    numbers = all(name.isdecimal() for name in ids)
    order = sorted(chosen, key=lambda i: (int(ids[i]) if numbers else 0, ids[i]))
    return [ids[i] for i in order], [parts[i] for i in order]


def enough(samples: int, num_users: int) -> None:
    """Refuse fewer samples than two a user."""
    if num_users < 1:
        raise DataError(f"num-users={num_users}: there must be at least one user.")
    if samples < LEAST_SAMPLES * num_users:
        raise DataError(
            f"num-users={num_users}: {samples} samples are too few, each user needs "
            f"{LEAST_SAMPLES}; set num-users to at most {samples // LEAST_SAMPLES}, or "
            "give more data."
        )


def quotas(most: Ints, total: int, rng: np.random.Generator) -> Ints:
    """`total` places dealt to classes as evenly as their limits `most` allow; ties by `rng`."""
    low, high = 0, int(most.max())
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.minimum(most, middle).sum() <= total else (low, middle - 1)
    places = np.minimum(most, low)
    places[rng.permutation(np.flatnonzero(most > low))[: total - places.sum()]] += 1
    return places


def pool(labels: Ints, present: Ints, rng: np.random.Generator) -> list[Ints]:
    """The positions of each class's samples, shuffled."""
    return [rng.permutation(np.flatnonzero(labels == c)) for c in present]


def lognormal(num_users: int, sigma: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Relative sizes of the users; all equal for sigma = 0."""
    draws = rng.normal(0.0, min(sigma, 30.0), num_users)
    sizes: NDArray[np.float64] = np.exp(draws - draws.max())
    return np.maximum(sizes, 1e-12)  # a sum of none but zeros could not be shared out


def hand_out(pools: list[Ints], dealt: Ints, sizes: NDArray[np.float64], least: int) -> list[Ints]:
    """Cut each class into a piece for every time that `dealt` (users, S) names it.

    Pieces are in proportion to the relative `sizes` of the users that they are for, but for the
    first `least` samples of each.
    """
    weights = np.broadcast_to(sizes[:, None], dealt.shape)
    pieces: list[list[Ints]] = [[] for _ in dealt]
    for c, samples in enumerate(pools):
        takers, places = np.nonzero(dealt == c)
        if not len(takers):
            continue
        shares = np.cumsum(weights[takers, places])
        ends = np.rint(shares / shares[-1] * (len(samples) - least * len(takers)))
        ends = ends.astype(np.int64) + least * np.arange(1, len(takers) + 1)
        for user, piece in zip(takers, np.split(samples, ends[:-1]), strict=True):
            pieces[user].append(piece)
    return [np.sort(np.concatenate(own)) for own in pieces]
