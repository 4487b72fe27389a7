"""Sent140: tweets by author, negative or positive; LEAF's JSON files, or the Hugging Face hub.

A tweet is its first 25 words as numbers; what the model sees are their frozen vectors, from a file
such as GloVe's. Number 0 is every word without a vector and the filling of short texts: the zero
vector, as in LEAF. The filling comes before the words, where LEAF has it after them: a recurrent
network that is read out at the last step would have to remember the words over all of it. FedRep's
users are authors with enough tweets: LEAF's `preprocess.sh -k 50`, or `min-samples=50`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from corsage.core.arrays import Floats32
from corsage.core.configuration.key_groups import DataKeys
from corsage.core.errors import DataError
from corsage.core.keys import key
from corsage.datasets import hub, leaf
from corsage.datasets.data_set import DataSet
from corsage.datasets.sample_table import Table, check_users, labels_below

SENT140_HUB = "stanfordnlp/sentiment140"
FIELDS = "5 fields (id, date, query, author, text)"
LENGTH = 25
WORD = re.compile(r"[\w']+|[.,!?;]")
"""LEAF's words: letters, digits and ', or one of . , ! ? ;"""
Tweet = tuple[str, int, str]
"""Its text, whether it is positive, and its author."""


@dataclass(frozen=True)
class Sent140Keys(DataKeys):
    """Keys of Sent140."""

    embeddings: str = key(
        "glove.6B.300d.txt", "text file of frozen word vectors, in data-dir or a path"
    )


def load(keys: Sent140Keys) -> Table:
    """All tweets as (n, 25) token numbers, with the vectors of the tokens and their authors."""
    *paths, vectors_file = files(keys)
    where = keys.data_dir or SENT140_HUB
    tweets = list(from_leaf(paths) if paths else from_hub(leaf.missing(keys, SENT140_HUB)))
    if not tweets:
        raise DataError(f"{where}: no tweets in it.")
    texts, labels, authors = zip(*tweets, strict=True)
    users = np.array(authors, np.str_)
    check_users(users, where)
    x, vectors = embedded(texts, vectors_file)
    return Table(x, np.array(labels, np.int64), users, None, 2, 0.0, 1.0, vectors)


def files(keys: Sent140Keys) -> list[Path]:
    """LEAF's files, and the one of word vectors: in `data-dir`, or at its path."""
    tried = [Path(keys.embeddings).expanduser()]
    if keys.data_dir:
        tried.insert(0, Path(keys.data_dir).expanduser() / keys.embeddings)
    found = [path for path in tried if path.is_file()]
    if not found:
        raise DataError(
            f"dataset={keys.dataset}: expected the word vectors {keys.embeddings} (text, a word, "
            f"its numbers a line) at {' or '.join(map(str, dict.fromkeys(tried)))}; there is no "
            "such file. Put it there (glove.6B.zip at nlp.stanford.edu/projects/glove has it), or "
            "set embeddings=FILE."
        )
    return [*leaf.files(keys, SENT140_HUB), found[0]]


def from_leaf(paths: list[Path]) -> Iterator[Tweet]:
    """The tweets of all files, 0 for negative and 1 for positive ones."""
    for path in paths:
        for user, samples, labels in leaf.users(path):
            where = f"{path}: user {user}"
            positive = labels_below([int(y) if y in ("0", "1") else y for y in labels], 2, where)
            for sample, label in zip(samples, positive.tolist(), strict=True):
                match sample:
                    case [_, _, _, _, str(text)]:
                        yield text, label, user
                    case _:
                        raise DataError(f"{where}: a tweet that is not a list of {FIELDS}.")


def from_hub(absent: DataError) -> Iterator[Tweet]:
    """The tweets of the hub's training and test split.

    4 is positive; the few neutral ones (2) count as negative, as in LEAF's preprocessing.
    """
    splits = hub.splits(SENT140_HUB, absent)
    for rows in (splits["train"], splits["test"]):
        positive = (hub.column(rows, "sentiment") == 4).astype(int).tolist()
        yield from zip(hub.texts(rows, "text"), positive, hub.texts(rows, "user"), strict=True)


# Words and their vectors.


def embedded(texts: Iterable[str], path: Path) -> tuple[NDArray[np.int32], Floats32]:
    """Texts as token numbers (n, 25) and the vectors (tokens, width) of the tokens.

    A word is looked up as it is written, then in lower case.
    """
    codes: dict[str, int] = {"": 0}
    rows = [[codes.setdefault(w, len(codes)) for w in WORD.findall(t)[:LENGTH]] for t in texts]
    coded = np.zeros((len(rows), LENGTH), np.int32)
    for row, own in zip(coded, rows, strict=True):
        row[LENGTH - len(own) :] = own
    places, vectors = read(path, {form for word in codes for form in (word, word.lower())} - {""})
    final = [places.get(word, places.get(word.lower(), 0)) for word in codes]
    used, token = np.unique(np.array([0, *final], np.int64), return_inverse=True)
    return token[1:].astype(np.int32)[coded], vectors[used]


def read(path: Path, wanted: set[str]) -> tuple[Mapping[str, int], Floats32]:
    """The rows of the wanted words (from 1), and the vectors; row 0 is zero."""
    places, rows, width = dict[str, int](), list[Floats32](), 0
    names = {word.encode(): word for word in wanted}
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                name, *values = line.split() or [b""]
                if not width and len(values) > 1:  # not word2vec's header of two numbers
                    width = len(values)
                if name in names and len(values) <= width:  # else a word with blanks in it
                    places[names.pop(name)] = len(places) + 1  # the first one counts
                    rows.append(numbers(values, width, f"{path}: line {number}"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from error
    if not rows:
        raise DataError(
            f"{path}: none of the texts' {len(names)} words is in it; is it a text file of word "
            "vectors (a word and its numbers a line)? Set embeddings=FILE."
        )
    return places, np.stack([np.zeros(width, np.float32), *rows])


def numbers(values: list[bytes], width: int, where: str) -> Floats32:
    """One word's vector."""
    try:
        vector = np.array([float(value) for value in values], np.float32)
    except ValueError as error:
        raise DataError(f"{where}: not a word and its numbers ({error}).") from error
    if len(vector) != width or not np.isfinite(vector).all():
        raise DataError(f"{where}: not {width} finite numbers, as in line 1; unpack it again.")
    return vector


DATASET = DataSet(load, Sent140Keys, files, users="either")
