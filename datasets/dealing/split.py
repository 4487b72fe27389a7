"""Choosing some of a user's samples so that its classes keep their shares: train, test, caps.

Labels that are numbers have no shares to keep: there, chance alone chooses.
"""

from __future__ import annotations

import numpy as np

from corsage.core.arrays import Ints
from corsage.core.errors import DataError
from corsage.core.groups import DataKeys
from corsage.core.seeding import generator
from corsage.datasets.table import Mask, Table


def split_rows(table: Table, rows: Ints, user: str, keys: DataKeys, seed: int) -> tuple[Ints, Ints]:
    """Positions in `rows`, which are one user's, of its training and test samples."""
    return split_user(
        table.strata[rows],
        user,
        test_fraction=keys.test_fraction,
        max_train_samples=keys.max_train_samples,
        seed=seed,
        known=None if table.test is None else table.test[rows],
    )


def split_user(
    labels: Ints,
    user: str,
    *,
    test_fraction: float,
    max_train_samples: int,
    seed: int,
    known: Mask | None = None,
) -> tuple[Ints, Ints]:
    """Positions of one user's training and test samples, each sorted.

    Depends on the seed, the user and the order of its samples only: a device that has its own
    samples in the same order gets the same split as a simulation of all users. `known` says which
    are test samples, if the data say so: then `test_fraction` is of no account. A user with
    a single sample trains on it, and has none to be judged by.
    """
    total = len(labels)
    rng = generator(seed, "split", user)
    train, test = np.arange(total), np.arange(0)
    if total == 0:
        raise DataError(f"user {user}: no samples.")
    if known is not None:
        train, test = np.flatnonzero(~known), np.flatnonzero(known)
        if not len(train):
            raise DataError(f"user {user}: all of its samples are test samples; drop this user.")
    elif test_fraction > 0 and total > 1:  # a single sample is for training
        size = min(max(round(total * test_fraction), 1), total - 1)
        test = choose(labels, size, rng, keep_one=True)
        train = np.delete(train, test)
    if max_train_samples and len(train) > max_train_samples:
        train = train[choose(labels[train], max_train_samples, rng)]
    return train, test


def choose(labels: Ints, size: int, rng: np.random.Generator, *, keep_one: bool = False) -> Ints:
    """Positions of `size` samples drawn at random, each class in proportion; sorted.

    With `keep_one` at least one sample of each class stays behind, as long as that is possible.
    """
    _, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
    taken = apportion(counts, size, rng, keep_one=keep_one)
    order = rng.permutation(len(labels))
    order = order[np.argsort(inverse[order], kind="stable")]
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(order[rank < np.repeat(taken, counts)])


def apportion(counts: Ints, size: int, rng: np.random.Generator, *, keep_one: bool) -> Ints:
    """How many of each class make `size` in all: the proportional shares, rounded.

    What rounding and the limits leave over goes, one by one, to the class that is furthest below
    its share; equal claims are settled by `rng`.
    """
    most = counts - 1 if keep_one else counts
    share = counts * (size / counts.sum())
    taken: Ints = np.minimum(share.astype(np.int64), most)
    claim = share + rng.random(len(counts)) * 1e-6
    for _ in range(size - int(taken.sum())):
        if (taken >= most).all():  # more are needed than there are beside one of each class
            most = counts
        taken[np.argmax(np.where(taken < most, claim - taken, -np.inf))] += 1
    return taken
