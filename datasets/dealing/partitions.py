"""Dealing a pool of labelled samples to users: pure functions of labels, number of users, rng.

Each returns one sorted array of sample positions a user; no sample is dealt twice, and no user
gets fewer than two (one to train on, one to test on). None of them can hang.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from corsage.core.arrays import Ints
from corsage.core.errors import DataError

LEAST_SAMPLES = 2  # samples a user
USUAL_LEAST = 10  # samples that `by_class` sees to, as the published splits do
SCALING_STEPS = 200  # of the scaling in `dirichlet`
DRAWS = 2000  # of `by_class`, until every user has enough


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


def dirichlet(
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


def natural(
    users: NDArray[np.str_], num_users: int, rng: np.random.Generator, *, least: int = 0
) -> tuple[list[str], list[Ints]]:
    """The data's own users with their samples: all (0), or so many drawn of those with two.

    Users with fewer than `least` samples are left out.
    """
    ids, inverse, counts = np.unique(users, return_inverse=True, return_counts=True)
    parts = np.split(np.argsort(inverse, kind="stable"), np.cumsum(counts)[:-1])
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
    order = sorted(chosen, key=lambda i: (int(ids[i]) if numbers else 0, str(ids[i])))
    return [str(ids[i]) for i in order], [parts[i] for i in order]


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


def pieces(pools: list[Ints], taken: Ints) -> list[Ints]:
    """The positions of each user, who takes so many (users, classes) of each class's pool."""
    ends = np.cumsum(taken, axis=0)
    return [
        np.sort(np.concatenate([p[e - t : e] for p, e, t in zip(pools, end, took, strict=True)]))
        for end, took in zip(ends, taken, strict=True)
    ]


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
