"""One user's samples as arrays, whatever they come in.

Neither torch nor Hugging Face's packages are imported here: what they make is known by its face.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from corsage.core.arrays import Array
from corsage.core.errors import DataError
from corsage.datasets.sample_table import some

LABEL_NAMES = ("label", "labels", "y", "target", "fine_label")
"""Columns that are taken for the label if none is named."""
PART_NAMES = {
    frozenset(("x", "y")): ("x", "y"),
    frozenset(("x", "y", "x_test", "y_test")): ("x", "y", "x_test", "y_test"),
    frozenset(("x_train", "y_train")): ("x_train", "y_train"),
    frozenset(("x_train", "y_train", "x_test", "y_test")): (
        "x_train",
        "y_train",
        "x_test",
        "y_test",
    ),
}
"""The names of arrays in a dictionary."""
SPLITS = ("test", "val", "valid", "validation")
"""The names of what is for testing, beside `train`; the first that is there is meant."""
WANTED = (
    "give (x, y), (x, y, x_test, y_test), a dictionary of such arrays, a torch Dataset or "
    "DataLoader, a Hugging Face Dataset, or two of these, for training and for testing"
)


@dataclass(frozen=True)
class Samples:
    """One user's samples; what is for testing, where that is said."""

    x: Array
    y: Array
    x_test: Array | None = None
    y_test: Array | None = None

    def __post_init__(self) -> None:
        for x, y, what in ((self.x, self.y, ""), (self.x_test, self.y_test, "test ")):
            if x is not None and y is not None and len(x) != len(y):
                raise DataError(f"{len(x)} {what}samples and {len(y)} {what}labels.")


@dataclass(frozen=True)
class Columns:
    """The columns of a data set that are meant; empty: the label by its usual names, all others."""

    label: str = ""
    features: tuple[str, ...] = ()


def is_array(given: Any) -> bool:
    """Tell whether something is an array, or a list of numbers or of arrays."""
    if is_data_set(given) or isinstance(given, str | bytes | Mapping):
        return False
    return hasattr(given, "__array__") or isinstance(given, Sequence)


def is_data_set(given: Any) -> bool:
    """Tell whether something is a data set or its loader: of torch, or of Hugging Face."""
    if is_loader(given) or is_hugging_face(given):
        return True
    items = hasattr(given, "__getitem__") and hasattr(given, "__len__")
    return items and not isinstance(given, Sequence | Mapping) and not hasattr(given, "__array__")


def is_loader(given: Any) -> bool:
    """Tell whether something is a torch DataLoader."""
    return hasattr(given, "dataset") and hasattr(given, "batch_size") and hasattr(given, "__iter__")


def is_hugging_face(given: Any) -> bool:
    """Tell whether something is a Hugging Face Dataset."""
    return hasattr(given, "column_names") and hasattr(given, "with_format")


def samples_of(given: Any, columns: Columns) -> Samples:
    """One user's samples."""
    if isinstance(given, Samples):
        return given
    if isinstance(given, Mapping):
        return of_mapping(given, columns)
    if is_data_set(given):
        return Samples(*pair_of(given, columns))
    if isinstance(given, tuple | list) and len(given) in (2, 4):
        return of_sequence(given, columns)
    raise DataError(f"{type(given).__name__}: {WANTED}.")


def of_mapping(given: Mapping[str, Any], columns: Columns) -> Samples:
    """Arrays by name, or data sets for training and for testing."""
    if names := PART_NAMES.get(frozenset(given)):
        return Samples(*(array_of(given[name], name) for name in names))
    if "train" not in given:
        raise DataError(f"a dictionary of {some(list(map(str, given)))}: {WANTED}.")
    train = samples_of(given["train"], columns)
    test = next((given[name] for name in SPLITS if name in given), None)
    return train if test is None else joined(train, samples_of(test, columns))


def of_sequence(given: Sequence[Any], columns: Columns) -> Samples:
    """Two or four arrays, or two data sets, for training and for testing."""
    if len(given) == 4:
        return Samples(*(array_of(part, "an array") for part in given))
    if all(is_array(part) for part in given):
        return Samples(array_of(given[0], "x"), array_of(given[1], "y"))
    return joined(*(samples_of(part, columns) for part in given))


def joined(train: Samples, test: Samples) -> Samples:
    """Samples for training and samples for testing."""
    if train.x_test is not None or test.x_test is not None:
        raise DataError("test samples within training or test samples; give them once.")
    return Samples(train.x, train.y, test.x, test.y)


def array_of(given: Any, what: str) -> Array:
    """An array of numbers or words out of an array of any package, or of lists."""
    if hasattr(given, "detach"):  # a tensor, perhaps of a graphics card
        given = given.detach().cpu()
    try:
        array = np.asarray(given)
    except (ValueError, TypeError) as error:
        raise DataError(f"{what}: cannot be made an array ({error}).") from error
    if array.dtype == object:
        array = of_objects(array, what)
    return array


def of_objects(array: Array, what: str) -> Array:
    """An array of Python's numbers, words or arrays; what is neither is refused."""
    try:
        return np.stack([np.asarray(one) for one in array]) if array.ndim == 1 else array * 1.0
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{what}: its samples are not of one shape, or not numbers ({error})."
        ) from error


# Data sets.


def pair_of(given: Any, columns: Columns) -> tuple[Array, Array]:
    """All samples of a data set: inputs and labels."""
    if is_loader(given):  # its data set is in order; a loader may shuffle
        return pair_of(given.dataset, columns)
    if is_hugging_face(given):
        return of_hugging_face(given, columns)
    if hasattr(given, "tensors"):
        return pair_of_columns(given.tensors)
    if not len(given):
        raise DataError("a data set without samples.")
    items = [given[i] for i in range(len(given))]
    if isinstance(items[0], Mapping):
        return by_name({name: [item[name] for item in items] for name in items[0]}, columns)
    return pair_of_columns(list(zip(*items, strict=True)))


def pair_of_columns(columns: Sequence[Any]) -> tuple[Array, Array]:
    """Inputs and labels, where samples are pairs."""
    if len(columns) != 2:
        raise DataError(f"samples of {len(columns)} parts; a sample is (input, label).")
    return stacked(columns[0], "inputs"), stacked(columns[1], "labels")


def stacked(values: Any, what: str) -> Array:
    """Samples one by one as an array."""
    if isinstance(values, Sequence):
        values = [array_of(value, what) for value in values]
        if len({value.shape for value in values}) > 1:
            raise DataError(f"{what}: samples of different shapes; make them one.")
    return array_of(values, what)


def of_hugging_face(given: Any, columns: Columns) -> tuple[Array, Array]:
    """A Hugging Face Dataset in the format it has (`with_transform`), or else as arrays."""
    formatted = given if given.format.get("type") else given.with_format("numpy")
    return by_name(dict(formatted[:]), columns)


def by_name(given: Mapping[str, Any], columns: Columns) -> tuple[Array, Array]:
    """Inputs and labels out of columns."""
    names = list(given)
    label = columns.label or next((name for name in LABEL_NAMES if name in names), "")
    if label not in names:
        raise DataError(f"no label column {label!r} among {some(names)}; say label=NAME.")
    features = columns.features or tuple(name for name in names if name != label)
    if absent := [name for name in features if name not in names]:
        raise DataError(f"no column {some(absent)} among {some(names)}.")
    parts = {name: stacked(given[name], name) for name in features}
    return inputs_of(parts), stacked(given[label], label)


def inputs_of(parts: Mapping[str, Array]) -> Array:
    """The input out of columns: one of arrays (images), or numbers, side by side."""
    if not parts:
        raise DataError("no column beside the label.")
    words = [name for name, part in parts.items() if part.dtype.kind not in "biuf"]
    if words:
        raise DataError(
            f"column {some(words)}: not numbers; name the input by feature_columns=NAME."
        )
    first = next(iter(parts.values()))
    if len(parts) == 1 and first.ndim > 1:
        return channels_first(first)
    if wide := [name for name, part in parts.items() if part.ndim > 1]:
        raise DataError(
            f"columns {some(list(parts))}: {wide[0]} has many numbers a sample; say which column "
            "is the input (feature_columns=NAME)."
        )
    return np.column_stack(list(parts.values()))


def channels_first(x: Array) -> Array:
    """Pictures as torch has them: decoded ones have their colours last."""
    colours_last = x.dtype == np.uint8 and x.ndim == 4 and x.shape[3] in (1, 3, 4)
    return np.moveaxis(x, 3, 1) if colours_last and x.shape[1] not in (1, 3, 4) else x
