"""Choosing some of a user's samples so that its classes keep their shares: train, test, caps.

Labels that are numbers have no shares to keep: there, chance alone chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import ge

import numpy as np

from corsage.core.arrays import Ints
from corsage.core.configuration.key_groups import DataKeys
from corsage.core.errors import DataError
from corsage.core.seeding import generator
from corsage.datasets.sample_table import Mask, Table


def split_rows(table: Table, rows: Ints, user: str, keys: DataKeys, seed: int) -> tuple[Ints, Ints]:
    """Positions in `rows`, which are one user's, of its training and test samples.

    With `validation` the second are those that stand for the test.
    """
    return split_user(
        table.strata[rows],
        user,
        test_fraction=keys.test_fraction,
        validation=keys.validation,
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
    validation: float = 0.0,
    known: Mask | None = None,
) -> tuple[Ints, Ints]:
    """Positions of one user's training and test samples, each sorted.

    Depends on the seed, the user and the order of its samples only: a device that has its own
    samples in the same order gets the same split as a simulation of all users. `known` says which
    are test samples, if the data say so: then `test_fraction` is of no account. A user with
    a single sample trains on it, and has none to be judged by. With `validation` samples for
    training are kept out in the place of the test, whose samples are in neither part.
    """
    total = len(labels)
    train, test = np.arange(total), np.arange(0)
    if total == 0:
        raise DataError(f"user {user}: no samples.")
    if known is not None:
        train, test = np.flatnonzero(~known), np.flatnonzero(known)
        if not len(train):
            raise DataError(f"user {user}: all of its samples are test samples; drop this user.")
        if not max_train_samples and not validation:
            return train, test  # nothing is drawn: of very many users a generator each takes long
    rng = generator(seed, "split", user)
    if known is None and test_fraction > 0 and total > 1:  # a single sample is for training
        size = min(max(round(total * test_fraction), 1), total - 1)
        test = choose(labels, size, rng, keep_one=True)
        train = np.delete(train, test)
    if validation > 0:  # the test is drawn before, so it is the same without
        size = min(max(round(total * validation), 1), len(train) - 1)
        own = generator(seed, "validation", user)
        held = choose(labels[train], size, own, keep_one=True) if size else np.arange(0)
        train, test = np.delete(train, held), train[held]
    if max_train_samples and len(train) > max_train_samples:
        train = train[choose(labels[train], max_train_samples, rng)]
    return train, test


def choose(labels: Ints, size: int, rng: np.random.Generator, *, keep_one: bool = False) -> Ints:
    """Positions of `size` samples drawn at random, each class in proportion; sorted.

    With `keep_one` at least one sample of each class stays behind, as long as that is possible.
    """
    found = np.bincount(labels)
    counts: list[int] = found[found > 0].tolist()
    taken = apportion(counts, size, rng, keep_one=keep_one)
    order = rng.permutation(len(labels))
    if len(counts) == 1:  # as of numbers
        return np.sort(order[:size])
    order = order[labels[order].argsort(kind="stable")]
    starts = accumulate(counts, initial=0)
    return np.sort(np.concatenate([order[a : a + t] for a, t in zip(starts, taken, strict=False)]))


def apportion(
    counts: Sequence[int], size: int, rng: np.random.Generator, *, keep_one: bool
) -> list[int]:
    """Numbers of each class that make `size` in all: the proportional shares, rounded.

    What rounding and the limits leave over goes, one by one, to the class that is furthest below
    its share; equal claims are settled by `rng`. There may be a million users of few classes each:
    a loop over these is faster than arrays of two or three numbers.
    """
    most = [count - keep_one for count in counts]
    shares = [count * (size / sum(counts)) for count in counts]
    taken = [min(int(share), limit) for share, limit in zip(shares, most, strict=True)]
    draws = rng.random(len(counts)).tolist()
    claims = [share + draw * 1e-6 for share, draw in zip(shares, draws, strict=True)]
    for _ in range(size - sum(taken)):
        if all(map(ge, taken, most)):  # more are needed than there are beside one of each class
            most = list(counts)
        room = [c for c in range(len(counts)) if taken[c] < most[c]]
        taken[max(room, key=lambda c: claims[c] - taken[c])] += 1
    return taken
