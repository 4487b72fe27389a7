"""Texts as token numbers, and the frozen vectors of their words from a file such as GloVe's.

Number 0 is every word without a vector and the filling of short texts: the zero vector, as in LEAF.
The filling comes before the words, where LEAF has it after them: a recurrent network that is read
out at the last step would have to remember the words over all of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from corsage.core.arrays import Floats32
from corsage.core.errors import DataError
from corsage.core.groups import DataKeys

LENGTH = 25
WORD = re.compile(r"[\w']+|[.,!?;]")


def find(keys: DataKeys, embeddings: str) -> Path:
    """The file of word vectors: in `data-dir`, or at its path."""
    tried = [Path(embeddings).expanduser()]
    if keys.data_dir:
        tried.insert(0, Path(keys.data_dir).expanduser() / embeddings)
    for path in tried:
        if path.is_file():
            return path
    places = " or ".join(map(str, dict.fromkeys(tried)))
    raise DataError(
        f"dataset={keys.dataset}: expected the word vectors {embeddings} (text, a word, its "
        f"numbers a line) at {places}; there is no such file. Put it there (glove.6B.zip at "
        "nlp.stanford.edu/projects/glove has it), or set embeddings=FILE."
    )


def coded(texts: Iterable[str]) -> tuple[NDArray[np.int32], list[str]]:
    """The first 25 words of each text as numbers (texts, 25) of the words that are returned.

    Number 0 is no word. Words are those of LEAF: letters, digits and ', or one of . , ! ? ;
    """
    codes: dict[str, int] = {"": 0}
    rows = [
        [codes.setdefault(word, len(codes)) for word in WORD.findall(text)[:LENGTH]]
        for text in texts
    ]
    out = np.zeros((len(rows), LENGTH), np.int32)
    for row, own in zip(out, rows, strict=True):
        row[LENGTH - len(own) :] = own
    return out, list(codes)


def embedded(texts: Iterable[str], path: Path) -> tuple[NDArray[np.int32], Floats32]:
    """Texts as token numbers (n, 25) and the vectors (tokens, width) of the tokens.

    A word is looked up as it is written, then in lower case.
    """
    codes, words = coded(texts)
    places, vectors = read(path, {form for word in words for form in (word, word.lower())})
    final = [places.get(word, places.get(word.lower(), 0)) if word else 0 for word in words]
    used, token = np.unique(np.array([0, *final], np.int64), return_inverse=True)
    return token[1:].astype(np.int32)[codes], vectors[used]


def read(path: Path, wanted: set[str]) -> tuple[Mapping[str, int], Floats32]:
    """The rows of the wanted words (from 1), and the vectors; row 0 is zero."""
    places: dict[str, int] = {}
    rows: list[Floats32] = []
    names = {word.encode() for word in wanted if word}
    width = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                word, _, rest = line.partition(b" ")
                if not width and len(rest.split()) > 1:  # not word2vec's header of two numbers
                    width = len(rest.split())
                if word not in names:
                    continue
                values = rest.split()
                if len(values) > width:
                    continue  # a word with blanks in it
                names.discard(word)  # the first one counts
                places[word.decode()] = len(places) + 1
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
        raise DataError(
            f"{where}: {len(vector)} numbers, or not finite; the first line has {width}. "
            "Is the file cut off? Unpack it again."
        )
    return vector
