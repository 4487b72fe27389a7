"""Sent140: tweets by author, negative or positive; LEAF's JSON files, or the Hugging Face hub.

A tweet is its first 25 words as numbers; what the model sees are their frozen vectors (`words`).
FedRep's users are authors with enough tweets: LEAF's `preprocess.sh -k 50`, or `min-samples=50`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from corsage.core.errors import DataError
from corsage.core.groups import DataKeys
from corsage.core.keys import key
from corsage.datasets import hub, leaf, words
from corsage.datasets.data_set import DataSet
from corsage.datasets.table import Table, check_users

HUB = "stanfordnlp/sentiment140"
FIELDS = 5  # of a tweet in LEAF's files: id, date, query, author, text
Tweets = tuple[list[str], list[int], list[str]]


@dataclass(frozen=True)
class Sent140Keys(DataKeys):
    """Keys of Sent140."""

    embeddings: str = key(
        "glove.6B.300d.txt", "text file of frozen word vectors, in data-dir or a path"
    )


def load(keys: Sent140Keys) -> Table:
    """All tweets as (n, 25) token numbers, with the vectors of the tokens and their authors."""
    vectors_file = words.find(keys, keys.embeddings)
    paths = leaf.files(keys, HUB)
    texts, labels, authors = from_leaf(paths) if paths else from_hub(leaf.missing(keys, HUB))
    where = keys.data_dir or HUB
    if not texts:
        raise DataError(f"{where}: no tweets in it.")
    users = np.array(authors, np.str_)
    check_users(users, where)
    x, vectors = words.embedded(texts, vectors_file)
    return Table(x, np.array(labels, np.int64), users, None, 2, 0.0, 1.0, vectors)


def files(keys: Sent140Keys) -> list[Path]:
    """All files that the data are read from."""
    return [words.find(keys, keys.embeddings), *leaf.files(keys, HUB)]


def from_leaf(paths: list[Path]) -> Tweets:
    """Texts, labels and authors of all files."""
    tweets: Tweets = ([], [], [])
    for path in paths:
        for user, samples, labels in leaf.users(path):
            for sample, label in zip(samples, labels, strict=True):
                tweets[0].append(text(sample, f"{path}: user {user}"))
                tweets[1].append(sentiment(label, f"{path}: user {user}"))
            tweets[2].extend([user] * len(labels))
    return tweets


def text(sample: Any, where: str) -> str:
    """The words of one tweet."""
    if isinstance(sample, list) and len(sample) == FIELDS and isinstance(sample[-1], str):
        return sample[-1]
    raise DataError(
        f"{where}: a tweet that is not a list of {FIELDS} fields (id, date, query, author, text)."
    )


def sentiment(label: Any, where: str) -> int:
    """0 for negative, 1 for positive."""
    if str(label) in ("0", "1"):
        return int(label)
    raise DataError(f"{where}: a label of {label!r}; expected 0 (negative) or 1 (positive).")


def from_hub(absent: DataError) -> Tweets:
    """The tweets of the hub's training and test split.

    4 is positive; the few neutral ones (2) count as negative, as in LEAF's preprocessing.
    """
    tweets: Tweets = ([], [], [])
    splits = hub.splits(HUB, absent)
    for name in ("train", "test"):
        rows = splits[name]
        tweets[0].extend(hub.texts(rows, "text"))
        tweets[1].extend((hub.column(rows, "sentiment") == 4).astype(int).tolist())
        tweets[2].extend(hub.texts(rows, "user"))
    return tweets


DATASET = DataSet(load, Sent140Keys, files, users="either")
