"""MNIST and Fashion-MNIST: IDX files of the publisher, Debian's package, or the Hugging Face hub.

The published training and test files become one pool of 70,000 images: every user gets a test
part of its own (`split.py`), of the same classes as its training part.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from corsage.core.arrays import Array
from corsage.core.configuration.key_groups import DataKeys
from corsage.core.errors import DataError
from corsage.datasets import hub
from corsage.datasets.data_set import DataSet
from corsage.datasets.sample_table import Table, class_labels, standardised

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
UNSIGNED_BYTE = 8


@dataclass(frozen=True)
class Published:
    """The address of a data set, and its pixels' published mean and standard deviation."""

    hub: str
    debian: str  # the folder that `package` installs, "" if there is no such package
    package: str
    mean: float
    std: float


IDX_SETS = {
    "mnist": Published("ylecun/mnist", "", "", 0.1307, 0.3081),
    "fashion-mnist": Published(
        "zalando-datasets/fashion_mnist",
        "/usr/share/datasets/fashion-mnist",
        "dataset-fashion-mnist",
        0.2860,
        0.3530,
    ),
}


def load(keys: DataKeys) -> Table:
    """All images of `keys.dataset` as (70000, 1, 28, 28) uint8, from the first place with them."""
    published = IDX_SETS[keys.dataset]
    paths = files(keys)
    if paths:
        x_train, y_train, x_test, y_test = (read_idx(path) for path in paths)
        for images, labels, path in ((x_train, y_train, paths[1]), (x_test, y_test, paths[3])):
            if len(images) != len(labels):
                raise DataError(
                    f"{path}: {len(labels)} labels for {len(images)} images; "
                    "the files are of different data sets: download all four again."
                )
        if x_train.shape[1:] != x_test.shape[1:]:
            raise DataError(f"{paths[2]}: images of another size than in {paths[0].name}.")
    else:
        x_train, y_train, x_test, y_test = from_hub(published.hub, missing(keys))
    x = np.concatenate([x_train, x_test])[:, None]
    y, classes = class_labels(np.concatenate([y_train, y_test]), keys.dataset)
    shift, scale = standardised(published.mean, published.std)
    return Table(x, y, None, None, max(classes, 10), shift, scale)


def files(keys: DataKeys) -> list[Path]:
    """The four files, in the order of `IDX_FILES`; none if only the hub is left to ask.

    `data-dir` is the only folder looked in if it is set: other images than those that were asked
    for would be worse than an error.
    """
    if keys.data_dir:
        found = found_in(Path(keys.data_dir).expanduser())
        if len(found) < len(IDX_FILES):
            raise missing(keys)
        return found
    debian = IDX_SETS[keys.dataset].debian
    found = found_in(Path(debian)) if debian else []
    return found if len(found) == len(IDX_FILES) else []


def found_in(folder: Path) -> list[Path]:
    """Those of the four files that the folder has, plain or gzipped."""
    names = ((name, f"{name}.gz") for name in IDX_FILES)
    found = (next((folder / n for n in pair if (folder / n).is_file()), None) for pair in names)
    return [path for path in found if path is not None]


def missing(keys: DataKeys) -> DataError:
    """The error that says which files were expected, where, and how to get them."""
    published = IDX_SETS[keys.dataset]
    where = keys.data_dir or published.debian
    looked = f"not all in {where}" if where else "no data-dir is set"
    lacking = ""
    if keys.data_dir:
        there = {p.name.removesuffix(".gz") for p in found_in(Path(keys.data_dir).expanduser())}
        lacking = f" (missing: {', '.join(n for n in IDX_FILES if n not in there)})"
    debian = f"`apt-get install {published.package}`, or " if published.package else ""
    return DataError(
        f"dataset={keys.dataset}: expected the files {', '.join(IDX_FILES)} (plain or .gz), "
        f"{looked}{lacking}. Set data-dir=FOLDER that has them, or "
        f"{debian}`pip install corsage[hub]` and leave data-dir empty to download them."
    )


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array of one IDX file of unsigned bytes, its header checked against its length."""
    try:
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: damaged gzip file ({error}); download it again.") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from error
    dims = 3 if "idx3" in path.name else 1
    head = 4 + 4 * dims
    if raw[:4] != bytes((0, 0, UNSIGNED_BYTE, dims)):
        raise DataError(
            f"{path}: starts with {raw[:4].hex() or 'nothing'}, an IDX file of {dims} dimensions "
            f"with 0000{UNSIGNED_BYTE:02x}{dims:02x}; download it again."
        )
    if len(raw) < head:
        raise DataError(f"{path}: ends within its header; download it again.")
    shape = struct.unpack(f">{dims}I", raw[4:head])
    if len(raw) - head != math.prod(shape):
        kind = "truncated" if len(raw) - head < math.prod(shape) else "too long"
        raise DataError(
            f"{path}: {kind}: {len(raw) - head} bytes of data where its header says "
            f"{'x'.join(map(str, shape))}; download it again."
        )
    return np.frombuffer(raw, np.uint8, offset=head).reshape(shape)


def from_hub(name: str, absent: DataError) -> tuple[Array, Array, Array, Array]:
    """Images and labels of both splits from the Hugging Face hub, in the order of `IDX_FILES`."""
    splits = hub.splits(name, absent)
    arrays: list[Array] = []
    for part in ("train", "test"):
        images = hub.column(splits[part], "image").astype(np.uint8)
        arrays += [images, hub.column(splits[part], "label")]
    return arrays[0], arrays[1], arrays[2], arrays[3]


DATASET = DataSet(load, DataKeys, files)
