"""Donors: who answers a letter of solicitation, by ZIP code (Lyu et al. 2022, section 6.2).

A user is a ZIP code; its known cluster is the bracket of its median household income, or "unknown".
A sample is a solicitation: log(1 + days since the last donation) and log(1 + donations so far), and
whether a donation followed. ZIP codes with fewer than five records are left out. Tests are drawn by
chance alone: donations are rare, and tests with their share of them would be easier than the rest.

The data of the paper are not public. With `data-file`, a CSV file of the same form is read: columns
zip, income, recency, frequency, response in any order and case (others are not looked at); income
is dollars, or the bracket's name. Without, records are drawn from a model of that shape:
`users-per-cluster=5898 samples-per-user=20` gives the paper's 29,490 users, about 970,000 records.

Brackets are those of S. Snider, "Where Do I Fall in the American Economic Class System?", U.S. News
2019 (from the Urban Institute): poor or near-poor up to $32,048, lower-middle class to $53,413,
middle class to $106,827, upper-middle class to $373,894, and rich beyond.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from corsage.core.arrays import Array, Ints
from corsage.core.errors import ConfigError, DataError
from corsage.core.keys import flatten
from corsage.core.seeding import generator
from corsage.datasets import csvfile
from corsage.datasets.csvfile import Columns
from corsage.datasets.data_set import DataSet
from corsage.datasets.sample_table import Numbers, Table, some
from corsage.datasets.shared_keys import DrawnKeys, FileKeys, own_file

LEAST_RECORDS = 5  # records a user
DONOR_COLUMNS = ("zip", "income", "recency", "frequency", "response")
BRACKETS = (
    "poor-or-near-poor", "lower-middle-class", "middle-class", "upper-middle-class", "rich",
)  # fmt: skip
LIMITS = (32_048.0, 53_413.0, 106_827.0, 373_894.0)  # the most of each bracket but the last
UNKNOWN_INCOME = "unknown"
MISSING_INCOMES = ("", "na", "n/a", "nan", "none", "null", UNKNOWN_INCOME)

# The model that records are drawn from. A logistic regression for everybody has a cross-entropy of
# about .213 there, a tuned one a user about .209: much noise, and little to know of each user.
DONOR_CLUSTERS = (*BRACKETS[:-1], UNKNOWN_INCOME)
SHARES = (0.10, 0.33, 0.42, 0.10, 0.05)  # of the users
SIZE_SIGMA = 1.0  # of the lognormal number of records
RECENCY, FREQUENCY = (400.0, 0.9), (3.0, 0.8)  # median and sigma, lognormal
RATE = 0.058  # of responses, in expectation
CENTRE = (-0.5, 0.6, 0.0)  # of log recency, log frequency, and the intercept before RATE
CLUSTER_SIGMA, USER_SIGMA = 0.03, 0.1


@dataclass(frozen=True)
class DonorsKeys(FileKeys, DrawnKeys):
    """Keys of the donors."""


@dataclass(frozen=True, eq=False)
class Donors:
    """Records, user by user, and what they were drawn from.

    Parameters
    ----------
    recency, frequency, response : one entry a record; `user` says whose.
    cluster : each user's cluster, a place in CLUSTERS (n,).
    theta : the users' coefficients (n, 3): log recency, log frequency, intercept.
    centres : the clusters' coefficients (5, 3).
    """

    recency: Ints
    frequency: Ints
    response: Ints
    user: Ints
    cluster: Ints
    theta: Numbers
    centres: Numbers


def draw(seed: int = 1, *, users: int = 20, records: int = 10) -> Donors:
    """Draw so many users a cluster on average, with a median of so many records each."""
    cluster = np.repeat(np.arange(len(DONOR_CLUSTERS)), cluster_sizes(users))
    n = len(cluster)
    rng = generator(seed, "donors", "users")
    centres = np.array(CENTRE) + CLUSTER_SIGMA * rng.normal(size=(len(DONOR_CLUSTERS), 3))
    theta = centres[cluster] + USER_SIGMA * rng.normal(size=(n, 3))
    sizes = np.maximum(LEAST_RECORDS, np.rint(records * np.exp(SIZE_SIGMA * rng.normal(size=n))))
    user = np.repeat(np.arange(n), sizes.astype(np.int64))
    rng = generator(seed, "donors", "records")
    recency, frequency = (
        np.maximum(1, np.rint(median * np.exp(sigma * rng.normal(size=len(user))))).astype(np.int64)
        for median, sigma in (RECENCY, FREQUENCY)
    )
    score = theta[user, 0] * np.log1p(recency) + theta[user, 1] * np.log1p(frequency)
    score += theta[user, 2]
    shift = np.array([0.0, 0.0, intercept(score, RATE)])
    chance = 1 / (1 + np.exp(-(score + shift[2])))
    response = (rng.random(len(user)) < chance).astype(np.int64)
    return Donors(recency, frequency, response, user, cluster, theta + shift, centres + shift)


def cluster_sizes(users: int) -> Ints:
    """Unequal numbers of users that are `users` on average: one each, the rest by SHARES."""
    rest = len(SHARES) * (users - 1)
    ends = np.rint(np.cumsum(SHARES) / sum(SHARES) * rest).astype(np.int64)
    return 1 + np.diff(ends, prepend=0)


def intercept(score: Numbers, rate: float) -> float:
    """The number to add to all scores so that their mean chance is `rate`: bisection."""
    low, high = -50.0, 50.0
    for _ in range(25):  # to 3e-6
        middle = (low + high) / 2
        mean = float(np.mean(1 / (1 + np.exp(-(score + middle)))))
        low, high = (middle, high) if mean < rate else (low, middle)
    return (low + high) / 2


def check(keys: DonorsKeys) -> None:
    """Refuse a limit below that of the data set, and keys of drawn records beside a file."""
    if 0 < keys.min_samples < LEAST_RECORDS:
        raise ConfigError(
            f"min-samples={keys.min_samples}: dataset=donors leaves out users with fewer than "
            f"{LEAST_RECORDS} records anyway; set {LEAST_RECORDS} or more, or leave it out."
        )
    words, idle = flatten(keys), flatten(DonorsKeys())
    for key in ("data-seed", "users-per-cluster", "samples-per-user"):
        if keys.data_file and words[key] != idle[key]:
            raise ConfigError(
                f"{key}={words[key]}: of no use with data-file={keys.data_file}; leave one out."
            )


def load(keys: DonorsKeys) -> Table:
    """The records of `data-file`, or drawn ones."""
    if keys.data_file:
        return read(keys.path)
    drawn = draw(keys.data_seed, users=keys.users_per_cluster, records=keys.samples_per_user)
    names = np.array([f"{i:05d}" for i in range(len(drawn.cluster))])
    return Table(
        np.log1p(np.column_stack([drawn.recency, drawn.frequency]).astype(np.float32)),
        drawn.response,
        names[drawn.user],
        np.array(DONOR_CLUSTERS)[drawn.cluster[drawn.user]],
        2,
        0.0,
        1.0,
        balanced=False,
    )


def read(path: Path) -> Table:
    """The records of a CSV file."""
    line, names = csvfile.read_header(path)
    lower = [name.lower() for name in names]
    missing = [name for name in DONOR_COLUMNS if name not in lower]
    if missing or len(set(lower)) < len(lower):
        raise DataError(
            f"{path}: the columns are {some(names)}; expected "
            f"{', '.join(DONOR_COLUMNS)}, each once."
        )
    zips, income, recency, frequency, response = (lower.index(name) for name in DONOR_COLUMNS)
    table = csvfile.read_numbers(
        path, Columns(names, line, response, zips, income, [recency, frequency])
    )
    if table.num_classes > 2 or (table.x < 0).any():
        raise DataError(
            f"{path}: a response that is not 0 or 1, or a recency or frequency below 0; correct it."
        )
    assert table.users is not None and table.clusters is not None  # the header has both
    words, place = np.unique(table.clusters, return_inverse=True)
    brackets = np.array([bracket(word, path) for word in words.tolist()])[place]
    return frequent(
        replace(table, x=np.log1p(table.x), clusters=brackets, num_classes=2, balanced=False),
        str(path),
    )


def bracket(income: str, path: Path) -> str:
    """The bracket that an income is in, or that is named."""
    word = income.strip().lower().replace(" ", "-")
    if word in MISSING_INCOMES:
        return UNKNOWN_INCOME
    if word in BRACKETS:
        return word
    try:
        dollars = float(word.replace("$", "").replace(",", ""))
    except ValueError:
        dollars = -1.0
    if not 0 <= dollars < np.inf:
        raise DataError(
            f"{path}: an income of {income!r}; expected dollars, one of {', '.join(BRACKETS)}, or "
            "nothing if it is not known."
        )
    return BRACKETS[int(np.searchsorted(LIMITS, dollars))]


def frequent(table: Table, where: str) -> Table:
    """The table without users who have too few records."""
    assert table.users is not None and table.clusters is not None
    _, place, counts = np.unique(table.users, return_inverse=True, return_counts=True)
    rows: NDArray[np.bool_] = counts[place] >= LEAST_RECORDS
    if not rows.any():
        raise DataError(
            f"{where}: no ZIP code has {LEAST_RECORDS} records or more; give more data."
        )
    kept: Array = np.flatnonzero(rows)
    return replace(
        table,
        x=table.x[kept],
        y=table.y[kept],
        users=table.users[kept],
        clusters=table.clusters[kept],
    )


DATASET = DataSet(load, DonorsKeys, own_file, check, users="own")
