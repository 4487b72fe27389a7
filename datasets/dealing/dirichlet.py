"""Dealing by draws from a Dirichlet distribution: of labels a user, or of users a class."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from corsage.core.arrays import Ints
from corsage.core.errors import DataError
from corsage.datasets.dealing.partitions import LEAST_SAMPLES, enough, pool

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
