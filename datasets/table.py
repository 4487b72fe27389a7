"""One raw data set in memory, and the checks that every loader shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corsage.app.errors import DataError

Array = NDArray[Any]
Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

# A "class" beyond this is a measurement or an id in the label column; a model's last layer would
# be allocated for it.
MOST_CLASSES = 100_000


@dataclass(frozen=True, eq=False)
class Table:
    """Samples before they are dealt to users: the model's input is `(x - shift) * scale`.

    `x` keeps its raw type (uint8 images stay uint8, a quarter of the memory). `users` and
    `clusters` name each sample's user and that user's known cluster ("" if it is not known), or
    are None if the data do not say. Tokens: with `vectors` (tokens, width), `x` are whole numbers
    (n, ...), and the model's input is those rows of the table (n, ..., width).
    """

    x: Array
    y: Ints
    users: NDArray[np.str_] | None
    clusters: NDArray[np.str_] | None
    num_classes: int
    shift: float
    scale: float
    vectors: Floats | None = None


def model_input(x: Array, shift: float, scale: float, vectors: Floats | None = None) -> Floats:
    """Raw samples as what the model sees: float32 `(x - shift) * scale`, always a copy."""
    out: Floats = x.astype(np.float32) if vectors is None else vectors[x]
    out -= np.float32(shift)
    out *= np.float32(scale)
    return out


def standardised(mean: float, std: float, top: float = 255.0) -> tuple[float, float]:
    """`shift` and `scale` that take 0..top to 0..1 and then to mean 0 and deviation 1."""
    return top * mean, 1.0 / (top * std)


def class_labels(values: Array, where: str) -> tuple[Ints, int]:
    """Labels as int64, with the number of classes; whole numbers from 0 are asked for."""
    if values.ndim != 1:
        raise DataError(f"{where}: labels of shape {values.shape}; expected one number a sample.")
    if values.dtype.kind not in "biuf":
        raise DataError(f"{where}: labels of type {values.dtype}; number the classes 0, 1, 2, ...")
    if not len(values):
        raise DataError(f"{where}: no samples in it.")
    good = np.isfinite(values) & (values >= 0) & (values == np.floor(values))
    if not good.all():
        row = int(np.argmin(good))
        raise DataError(
            f"{where}: the label of sample {row} is {values[row]}; "
            "labels are whole numbers from 0: number the classes 0, 1, 2, ..."
        )
    top = int(values.max())
    if top >= MOST_CLASSES:
        raise DataError(
            f"{where}: a label of {top} would mean {top + 1} classes (at most {MOST_CLASSES}); "
            "is this the right label-column?"
        )
    return values.astype(np.int64), top + 1


def id_strings(values: Array, where: str) -> NDArray[np.str_]:
    """User or cluster ids as text: 7, 7.0 and b"7" are all "7"."""
    if values.ndim != 1:
        raise DataError(f"{where}: of shape {values.shape}; expected one id a sample.")
    if values.dtype.kind == "f" and np.isfinite(values).all() and (values % 1 == 0).all():
        values = values.astype(np.int64)
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "replace")
    if values.dtype.kind not in "biuU":
        raise DataError(f"{where}: ids of type {values.dtype}; use text or whole numbers.")
    return np.char.strip(values.astype(np.str_))


def check_users(users: NDArray[np.str_], where: str) -> None:
    """Refuse a sample without a user."""
    if (users == "").any():
        row = int(np.argmax(users == ""))
        raise DataError(f"{where}: sample {row} has an empty user id; fill it in, or drop the row.")


def some(names: list[str]) -> str:
    """A list of names for a message, cut if it is long."""
    return ", ".join(names[:12]) + (f", ... ({len(names)} in all)" if len(names) > 12 else "")
