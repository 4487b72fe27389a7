"""One raw data set in memory, and the checks that every loader shares."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from corsage.core.arrays import Array, Floats32, Ints, PerChannel, along_channels
from corsage.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from corsage.core.tables.column_facts import TableFacts

Numbers = NDArray[np.float64]
Mask = NDArray[np.bool_]

# A "class" beyond this is a measurement or an id in the label column; a model's last layer would
# be allocated for it.
MOST_LABEL_CLASSES = 100_000
NO_FEATURES = ("none",)  # as feature-columns
INVISIBLE = "it has a character that cannot be seen; take it out"
OR_NUMBERS = ", or set labels=numbers to predict numbers"


@dataclass(frozen=True, eq=False)
class Table:
    """Samples before they are dealt to users: the model's input is `(x - shift) * scale`.

    Both are one number, or one for each channel of images.

    `x` keeps its raw type (uint8 images stay uint8, a quarter of the memory). `users` and
    `clusters` name each sample's user and that user's known cluster ("" if it is not known), or
    are None if the data do not say. Tokens: with `vectors` (tokens, width), `x` are whole numbers
    (n, ...), and the model's input is those rows of the table (n, ..., width).

    `y` are classes from 0, or, with `num_classes` 0, float64 numbers to predict. `test` says which
    samples are for testing, where the data say so; else each user's samples are split, with the
    classes `balanced` or by chance alone. Balanced tests of a rare class mislead: a user's only
    sample of it is never among them.

    `facts` name the columns of a table of one's own: `x` are then its cells, NaN where one is
    missing, words numbered by the levels of their column. `notes` are worth a line each. `classes`
    are the names of the classes of what is no table, if they have any.
    """

    x: Array
    y: Array
    users: NDArray[np.str_] | None
    clusters: NDArray[np.str_] | None
    num_classes: int
    shift: PerChannel
    scale: PerChannel
    vectors: Floats32 | None = None
    test: Mask | None = None
    balanced: bool = True
    facts: TableFacts | None = None
    notes: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    @cached_property
    def strata(self) -> Ints:
        """Strata that splits and partitions balance: the classes; numbers are all of one kind."""
        classes = self.balanced and self.num_classes
        return self.y if classes else np.zeros(len(self.y), np.int64)


def model_input(
    x: Array,
    shift: PerChannel,
    scale: PerChannel,
    vectors: Floats32 | None = None,
    *,
    exact: bool = False,
) -> Array:
    """Raw samples as what the model sees: `(x - shift) * scale`, always a copy.

    It is of the type that `input_numbers` gives them.
    """
    out = input_numbers(x if vectors is None else vectors[x], exact=exact)
    out -= along_channels(shift).astype(out.dtype)
    out *= along_channels(scale).astype(out.dtype)
    return out


def standardised(mean: float, std: float, top: float = 255.0) -> tuple[float, float]:
    """`shift` and `scale` that take 0..top to 0..1 and then to mean 0 and deviation 1."""
    return top * mean, 1.0 / (top * std)


def check_labels(values: Array, where: str, what: str) -> None:
    """Refuse what cannot be labels at all; `what` says what they should be."""
    if values.ndim != 1:
        raise DataError(f"{where}: labels of shape {values.shape}; expected one number a sample.")
    if values.dtype.kind not in "biuf":
        raise DataError(f"{where}: labels of type {values.dtype}; {what}.")
    if not len(values):
        raise DataError(f"{where}: no samples in it.")


def class_labels(values: Array, where: str, otherwise: str = "") -> tuple[Ints, int]:
    """Labels as int64, with the number of classes; whole numbers from 0 are asked for.

    `otherwise` is what else may be done about others, for the message.
    """
    remedy = f"number the classes 0, 1, 2, ...{otherwise}"
    check_labels(values, where, remedy)
    good = np.isfinite(values) & (values >= 0) & (values == np.floor(values))
    if not good.all():
        row = int(np.argmin(good))
        raise DataError(
            f"{where}: the label of sample {row} is {values[row]}; "
            f"labels are whole numbers from 0: {remedy}"
        )
    top = int(values.max())
    if top >= MOST_LABEL_CLASSES:
        raise DataError(
            f"{where}: a label of {top} would mean {top + 1} classes (at most "
            f"{MOST_LABEL_CLASSES}); is this the right label-column? If so, {remedy}"
        )
    return values.astype(np.int64), top + 1


def labels_below(values: Any, classes: int, where: str) -> Ints:
    """The labels of a data set that is known to have so many classes."""
    try:
        array = np.asarray(values)
    except ValueError as error:  # lists in the place of numbers
        raise DataError(f"{where}: labels that are not numbers ({error}).") from error
    labels, found = class_labels(array, where)
    if found > classes:
        raise DataError(f"{where}: a label of {found - 1}; there are {classes} classes.")
    return labels


def number_labels(values: Array, where: str) -> Numbers:
    """Labels that are numbers to predict, as float64; a model must be able to hold them."""
    check_labels(values, where, "labels=numbers needs numbers")
    numbers = values.astype(np.float64)
    with np.errstate(over="ignore"):
        good = np.isfinite(numbers.astype(np.float32))
    if not good.all():
        row = int(np.argmin(good))
        raise DataError(
            f"{where}: the label of sample {row} is {values[row]}, not a finite float32 number; "
            "fill it in, or drop the sample."
        )
    return numbers


def held(x: Array) -> Mask:
    """Mark the samples that a float32 model can hold."""
    with np.errstate(over="ignore"):
        finite = np.isfinite(x.astype(np.float32))
    return np.asarray(finite.reshape(len(x), -1).all(axis=1))


def input_numbers(x: Array, *, exact: bool) -> Array:
    """Inputs as float32; in float64 what is so already, since convex methods compute with all
    digits that the data have, and, `exact`, whatever numbers are predicted from."""
    return x.astype(np.float64 if exact or x.dtype == np.float64 else np.float32)


def read_labels(values: Array, where: str, *, numbers: bool) -> tuple[Array, int]:
    """The labels of a file of one's own, with the number of classes (0: they are numbers)."""
    if numbers:
        return number_labels(values, where), 0
    return class_labels(values, where, OR_NUMBERS)


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
    if values.dtype.kind == "U":
        return np.char.strip(values)
    known, places = np.unique(values, return_inverse=True)
    return np.array(known.astype(np.str_).tolist(), np.str_)[places]  # as wide as they are


def different(words: NDArray[np.str_]) -> tuple[list[str], Ints]:
    """The different words in order, and the place of each in them: `np.unique`, of text faster.

    Text is mostly in runs, such as that of a user.
    """
    changes = np.append(True, words[1:] != words[:-1])
    starts = np.flatnonzero(changes)
    heads = words[starts].tolist()
    known = sorted({*heads})
    place = {word: k for k, word in enumerate(known)}
    codes = np.fromiter(map(place.__getitem__, heads), np.int64, len(heads))
    return known, np.repeat(codes, np.diff(starts, append=len(words)))


def check_users(users: NDArray[np.str_], where: str) -> None:
    """Refuse a sample without a user."""
    known, codes = different(users)
    if "" in known:
        row = int(np.argmax(users == ""))
        raise DataError(f"{where}: sample {row} has an empty user id; fill it in, or drop the row.")
    if bad := [code for code, word in enumerate(known) if not word.isprintable()]:
        row = int(np.isin(codes, bad).argmax())
        raise DataError(f"{where}: row {row}, user: {str(users[row])!r:.60} is no id: {INVISIBLE}.")


def chosen_features(
    wanted: tuple[str, ...], free: list[str], usual: list[str], where: str
) -> list[str]:
    """The columns that are the input: the `wanted` (feature-columns) of the `free`, or `usual`."""
    if wanted == NO_FEATURES:
        return []
    said = f"feature-columns={','.join(wanted)}: {where}"
    unknown = [name for name in wanted if name not in free]
    if unknown:
        raise ConfigError(
            f"{said} has no feature {some(unknown)}; set some of {some(free)}, or none."
        )
    if len(set(wanted)) < len(wanted):
        raise ConfigError(f"{said}: a column is named twice; name it once.")
    check_seen(list(wanted) or usual, where)
    return list(wanted) or usual


def check_seen(names: list[str], where: str) -> None:
    """Refuse names of columns that are not as they look."""
    if hidden := [name for name in names if not name.isprintable()]:
        raise DataError(f"{where}: the name of column {hidden[0]!r:.60}: {INVISIBLE}.")


def some(names: list[str]) -> str:
    """A list of names for a message, cut if it is long."""
    return ", ".join(names[:12]) + (f", ... ({len(names)} in all)" if len(names) > 12 else "")
