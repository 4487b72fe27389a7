"""A folder of arrays that are mapped into memory: any number of users, and nothing is copied.

x.npy       the samples, user by user; of each user those for training first
y.npy       their labels
bounds.npy  (users, 3) whole numbers: where a user's training samples begin in x, where they end and
            its test samples begin, and where these end
users.npy   the users' ids, one each; without it they are numbered from 0
clusters.npy  each user's known cluster, if they have any

The other data sets are prepared first, user by user; here the folder is what would be prepared.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from corsage.core.arrays import Array, Arrays, Ints
from corsage.core.errors import ConfigError, DataError
from corsage.datasets.data_set import Arranged, DataSet
from corsage.datasets.sample_table import Table, id_strings, number_labels, standardised
from corsage.datasets.shared_keys import FileKeys, LabelKeys

ARRAYS = ("x", "y", "bounds")
OPTIONAL = ("users", "clusters")
BLOCK_BYTES = 2**22
"""Labels that are looked at at once."""


@dataclass(frozen=True)
class MappedKeys(LabelKeys, FileKeys):
    """Keys of mapped arrays; `data-file` is the folder."""

    @property
    def usual(self) -> str:
        """There is nothing else."""
        return "natural"


def check(keys: MappedKeys) -> None:
    """Refuse no folder at all."""
    if not keys.data_file:
        raise ConfigError("dataset=mapped: needs data-file=FOLDER, with x.npy, y.npy, bounds.npy.")


def files(keys: MappedKeys) -> list[Path]:
    """The files of the folder, which must be there."""
    folder = keys.path
    for name in ARRAYS:
        if not (folder / f"{name}.npy").is_file():
            raise DataError(f"data-file={keys.data_file}: no {name}.npy in it.")
    return [path for n in (*ARRAYS, *OPTIONAL) if (path := folder / f"{n}.npy").is_file()]


def arranged(keys: MappedKeys) -> Arranged:
    """The arrays as they are, and who has which range of them."""
    found: Arrays = {path.stem: mapped(path) for path in files(keys)}
    x, where = found["x"], f"{keys.path / 'x.npy'}"
    if x.ndim < 2 or x.dtype.kind not in "biuf":
        raise DataError(f"{where}: {x.dtype} of shape {x.shape}; samples are rows of numbers.")
    if x.dtype.itemsize > 8 or not x.dtype.isnative:
        raise DataError(
            f"{where}: {x.dtype.str}; nothing is converted here: save numbers of 64 bits at most, "
            "in this machine's byte order, such as float32."
        )
    y, classes = labels(found["y"], f"{keys.path / 'y.npy'}", keys.numbers)
    if len(y) != len(x):
        raise DataError(f"{keys.path / 'y.npy'}: {len(y)} labels for the {len(x)} samples of x.")
    bounds = checked_bounds(found["bounds"], f"{keys.path / 'bounds.npy'}", len(x))
    users = names(found.get("users"), "users", keys.path, len(bounds))
    known = names(found.get("clusters"), "clusters", keys.path, len(bounds))
    ids = users or [str(i) for i in range(len(bounds))]
    if len(set(ids)) < len(ids) or "" in ids:
        raise DataError(f"{keys.path / 'users.npy'}: an id is empty, or of two users.")
    clusters = {user: name for user, name in zip(ids, known, strict=False) if name}
    shift, scale = standardised(0.5, 0.5) if x.dtype == np.uint8 else (0.0, 1.0)
    return Arranged(ids, clusters, classes, shift, scale, x, y, bounds)


def mapped(path: Path) -> Array:
    """An array of a file, of which only what is used is read."""
    try:
        found: Array = np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
        return found
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"{path}: no array of NumPy's ({error}); write it with np.save.") from error


def labels(values: Array, where: str, numbers: bool) -> tuple[Array, int]:
    """Labels and the number of classes; classes are read in blocks, and stay on the disk."""
    if numbers:
        return (number_labels(values, where), 0) if values.dtype != np.float64 else (values, 0)
    if values.ndim != 1 or values.dtype.kind not in "iu" or not len(values):
        raise DataError(
            f"{where}: {values.dtype} of shape {values.shape}; classes are whole numbers from 0, "
            "one a sample; or set labels=numbers to predict numbers."
        )
    ends = [(values[i : i + BLOCK_BYTES].min(), values[i : i + BLOCK_BYTES].max())
            for i in range(0, len(values), BLOCK_BYTES)]  # fmt: skip
    low, high = int(min(a for a, _ in ends)), int(max(b for _, b in ends))
    if low < 0:
        raise DataError(f"{where}: a label of {low}; classes are numbered 0, 1, 2, ...")
    return values, high + 1


def checked_bounds(bounds: Array, where: str, samples: int) -> Ints:
    """Ranges that lie in x, in order."""
    if bounds.ndim != 2 or bounds.shape[1] != 3 or bounds.dtype.kind not in "iu" or not len(bounds):
        raise DataError(
            f"{where}: {bounds.dtype} of shape {bounds.shape}; it has three whole numbers a user: "
            "where its training samples begin, where its test samples begin, and where they end."
        )
    own = np.asarray(bounds, np.int64)  # without a sign, differences would never be negative
    wrong = (own[:, 0] < 0) | (np.diff(own, axis=1) < 0).any(1) | (own[:, 2] > samples)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(f"{where}: row {row} is {bounds[row].tolist()}, of {samples} samples.")
    check_apart(own, where)
    return own


def check_apart(bounds: Ints, where: str) -> None:
    """Refuse samples of two users: one's test would be in another's training."""
    filled = np.flatnonzero(bounds[:, 2] > bounds[:, 0])
    order = filled[np.argsort(bounds[filled, 0], kind="stable")]
    shared = bounds[order[1:], 0] < bounds[order[:-1], 2]
    if shared.any():
        first, second = sorted(order[int(np.argmax(shared)) :][:2].tolist())
        raise DataError(
            f"{where}: rows {first} and {second}, {bounds[first].tolist()} and "
            f"{bounds[second].tolist()}, have samples in common; each is one user's."
        )


def names(values: NDArray[np.generic] | None, what: str, folder: Path, users: int) -> list[str]:
    """Ids as text, one a user; [] if there are none."""
    if values is None:
        return []
    found: list[str] = id_strings(values, f"{folder / what}.npy").tolist()
    if len(found) != users:
        raise DataError(f"{folder / what}.npy: {len(found)} entries for the {users} users.")
    return found


def load(keys: MappedKeys) -> Table:
    """The same as a table, for what deals it anew or to devices: whole in memory."""
    own = arranged(keys)
    sizes = own.bounds[:, 2] - own.bounds[:, 0]
    rows = np.concatenate([np.arange(start, end) for start, _, end in own.bounds.tolist()])
    place = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    test = place >= np.repeat(own.bounds[:, 1] - own.bounds[:, 0], sizes)
    who = np.repeat(np.array(own.users), sizes)
    group = np.repeat(np.array([own.clusters.get(user, "") for user in own.users]), sizes)
    return Table(
        own.x[rows], own.y[rows], who, group if own.clusters else None, own.num_classes,
        own.shift, own.scale, test=test,
    )  # fmt: skip


DATASET = DataSet(load, MappedKeys, files, check, users="own", tested=True, arranged=arranged)
