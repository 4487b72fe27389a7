"""An NPZ file of one's own: arrays `x`, labels, users, perhaps clusters, one entry a sample.

A boolean array `test` says which samples are for testing; without it each user's are split. A
text `table` is in files that were dealt to devices: it names the columns of a table, or is empty
where x is as the model sees it.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from corsage.core.arrays import Array
from corsage.core.errors import ConfigError, DataError
from corsage.core.tables.column_facts import (
    NUMBER,
    NUMBERED_CLASSES,
    BadColumns,
    ColumnFacts,
    TableFacts,
    read_facts,
)
from corsage.datasets.data_set import DataSet
from corsage.datasets.sample_table import (
    Mask,
    Table,
    check_users,
    held,
    id_strings,
    input_numbers,
    read_labels,
    some,
    standardised,
)
from corsage.datasets.shared_keys import ColumnKeys, check_columns, own_file

# Other names under which an array is understood, as long as its key has its default value.
ALSO = {"label": ("y", "labels"), "user": ("users",)}
NO_ARRAYS = (ValueError, EOFError, KeyError, MemoryError, zipfile.BadZipFile, zlib.error)
"""What NumPy raises on a file that is damaged, or says that it is larger than memory."""


def load(keys: ColumnKeys) -> Table:
    """The samples of `data-file`; its user array must be there unless `user-column` is empty."""
    return read(keys.path, keys)


def read(path: Path, keys: ColumnKeys, *, optional: tuple[str, ...] = ()) -> Table:
    """One NPZ file; of the arrays "user" and "cluster", those in `optional` may be absent.

    uint8 is taken for pixels: 0..255 becomes -1..1 for the model, and (n, h, w) becomes
    (n, 1, h, w). Other numbers (n, features) are a table, whose columns are x0, x1, ...; those of
    more axes reach the model as they are, in float32 (`table.input_numbers`).
    """
    arrays = open_npz(path)
    cluster = keys.cluster_column or "cluster" * ("cluster" in arrays)
    wanted = {"label": keys.label_column, "user": keys.user_column, "cluster": cluster}
    names = {w: find(path, list(arrays), w, n, w in optional) for w, n in wanted.items()}
    if "x" not in arrays or not names["label"]:
        raise DataError(f"{path}: no array 'x' or no labels (arrays: {some(list(arrays))}).")
    x, facts = inputs(path, arrays, names["label"], keys)
    y, classes = read_labels(
        arrays[names["label"]], f"{path}: {names['label']}", numbers=keys.numbers
    )
    classes = max(classes, len(facts.label.levels)) if facts else classes
    found = {
        what: id_strings(arrays[names[what]], f"{path}: {names[what]}") if names[what] else None
        for what in ("user", "cluster")
    }
    test = test_mask(arrays.get("test"), f"{path}: test")
    for name, array in (("labels", y), ("test", test), *found.items()):
        if array is not None and len(array) != len(x):
            raise DataError(f"{path}: {len(array)} entries of {name} for {len(x)} samples in x.")
    if found["user"] is not None:
        check_users(found["user"], f"{path}: {names['user']}")
    shift, scale = standardised(0.5, 0.5) if x.dtype == np.uint8 else (0.0, 1.0)
    return Table(
        x, y, found["user"], found["cluster"], classes, shift, scale, test=test, facts=facts
    )


def test_mask(array: Array | None, where: str) -> Mask | None:
    """Mark the samples for testing, if the file says which they are."""
    if array is not None and (array.ndim != 1 or array.dtype != np.bool_):
        raise DataError(
            f"{where}: of type {array.dtype} and shape {array.shape}; it is to say of each sample "
            "whether it is for testing (one boolean each): make it so, or rename it."
        )
    return array


def open_npz(path: Path) -> dict[str, Array]:
    """All arrays of the file; nothing in it is ever unpickled."""
    try:
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise DataError(f"{path}: a single array; save several with np.savez(path, x=..., y=)")
        with archive:
            return {name: archive[name] for name in archive.files}
    except NO_ARRAYS as error:
        raise DataError(
            f"{path}: not an NPZ file of plain arrays ({unread(error)}); write it with np.savez."
        ) from error
    except OSError as error:
        cause = error.strerror or error
        raise DataError(f"{path}: cannot be read ({cause}). Check data-file.") from error


def unread(error: Exception) -> str:
    """Why a file's arrays cannot be read. NumPy would advise to unpickle it."""
    if isinstance(error, MemoryError):
        return "larger than the memory of this machine"
    return "Python objects, or no arrays at all" if "pickle" in str(error) else str(error)


def find(path: Path, names: list[str], what: str, wanted: str, optional: bool) -> str:
    """The name of the array for `what`, "" if there is none and none is needed."""
    also = ALSO[what] if ALSO.get(what) and wanted == what else ()
    for name in (wanted, *also):
        if name in names:
            return name
    if not wanted or optional:
        return ""
    none = f", or {what}-column= if it has none" if what != "label" else ""
    raise DataError(
        f"{path}: no array {' or '.join((wanted, *also))} (arrays: {some(names)}); "
        f"set {what}-column=NAME{none}."
    )


def samples(x: Array, where: str, *, exact: bool = False) -> Array:
    """The samples as uint8 or finite numbers (`input_numbers`), images with their channel axis.

    (samples, 0) is a data set without input: its model is an intercept alone.
    """
    check_samples(x, where)
    if x.dtype == np.uint8:
        return x[:, None] if x.ndim == 3 else x
    refuse_unheld(held(x), where)
    return input_numbers(x, exact=exact)


def check_samples(x: Array, where: str) -> None:
    """Refuse what cannot be samples."""
    if x.ndim < 2 or not len(x) or (x.ndim > 2 and not x.size):
        raise DataError(f"{where}: of shape {x.shape}; expected (samples, features or pixels...).")
    if x.dtype.kind not in "biuf":
        raise DataError(f"{where}: of type {x.dtype}; expected numbers.")


def refuse_unheld(good: Mask, where: str, more: str = "") -> None:
    """Refuse samples that a model cannot hold."""
    if not good.all():
        raise DataError(
            f"{where}: sample {int(np.argmin(good))} has values that are not finite float32 "
            f"numbers; fill them in, or drop the sample{more}."
        )


def cells(x: Array, where: str, keys: ColumnKeys) -> Array:
    """The cells of a table in double precision, NaN where one is missing and may be."""
    check_samples(x, where)
    if keys.missing == "refuse":
        refuse_unheld(held(x), where, ", or set missing=mean or flag")
    else:
        refuse_unheld(held(np.where(np.isnan(x), 0.0, x)), where)
    return x.astype(np.float64)


def is_table(x: Array) -> bool:
    """Tell whether samples are rows of numbers, and not pixels."""
    return x.ndim == 2 and x.dtype != np.uint8


def dealt_facts(path: Path, said: str, x: Array) -> TableFacts:
    """The columns of a table that was dealt to this device, as it says them itself."""
    try:
        found = read_facts(said, 0)
    except BadColumns as why:
        raise DataError(f"{path}: table: {why}; write the file anew.") from None
    if x.ndim != 2 or x.shape[1] != len(found.columns) or x.dtype != np.float64:
        raise DataError(f"{path}: table: it names {len(found.columns)} columns, x has others.")
    return found


def inputs(
    path: Path, arrays: dict[str, Array], label: str, keys: ColumnKeys
) -> tuple[Array, TableFacts | None]:
    """The samples, and if they are a table what its columns are."""
    x, where = arrays["x"], f"{path}: x"
    if said := str(arrays.get("table", "")):
        return x, dealt_facts(path, said, x)
    if is_table(x) and "table" not in arrays:
        return cells(x, where, keys), numbered_columns(x, label, keys)
    if "table" not in arrays:
        refuse_table_keys(keys)
    return samples(x, where, exact=keys.numbers), None


def numbered_columns(x: Array, label: str, keys: ColumnKeys) -> TableFacts:
    """The columns of a table that have no names."""
    columns = tuple(ColumnFacts(f"x{i}") for i in range(x.shape[1]))
    return TableFacts(columns, ColumnFacts(label, NUMBER if keys.numbers else NUMBERED_CLASSES))


def refuse_table_keys(keys: ColumnKeys) -> None:
    """Refuse keys that would do nothing."""
    for name, value in (("scale", keys.scale), ("missing", keys.missing)):
        if value not in ("auto", "none", "refuse"):
            raise ConfigError(f"{name}={value}: is for tables, and x are images; leave it out.")


DATASET = DataSet(load, ColumnKeys, own_file, check_columns, users="either", read=read)
