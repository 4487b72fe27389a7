"""CIFAR-10 and CIFAR-100: the publisher's python batches, or the Hugging Face hub.

The batches are pickles. They are read by an unpickler that knows numpy's arrays by stand-ins of
its own and refuses everything else by name: no code of the file's choosing ever runs. The published
training and test files become one pool of 60,000 images, dealt and split like any other data set:
n users with `test-fraction=0.1667` have 50,000/n training samples each. No augmentation.
"""

from __future__ import annotations

import io
import pickle
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from corsage.core.arrays import Array, Ints
from corsage.core.errors import DataError
from corsage.core.groups import DataKeys
from corsage.datasets import hub
from corsage.datasets.data_set import DataSet
from corsage.datasets.table import Table, class_labels

PIXELS = (3, 32, 32)


@dataclass(frozen=True)
class Published:
    """Where a data set is found, and the mean and deviation of its pixels (0 to 255)."""

    hub: str
    archive: str
    folder: str
    batches: tuple[str, ...]
    labels: str
    hub_labels: str
    classes: int
    mean: float
    std: float


PUBLISHED = {
    "cifar10": Published(
        "uoft-cs/cifar10",
        "cifar-10-python.tar.gz",
        "cifar-10-batches-py",
        (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
        "labels",
        "label",
        10,
        120.707,
        64.15,
    ),
    "cifar100": Published(
        "uoft-cs/cifar100",
        "cifar-100-python.tar.gz",
        "cifar-100-python",
        ("train", "test"),
        "fine_labels",
        "fine_label",
        100,
        121.936,
        68.389,
    ),
}


def load(keys: DataKeys) -> Table:
    """All images of `keys.dataset` as (60000, 3, 32, 32) uint8, with the fine labels."""
    published = PUBLISHED[keys.dataset]
    paths = files(keys)
    if paths:
        parts = [unpack(raw, where, published) for raw, where in contents(paths, published)]
    else:
        parts = from_hub(published, missing(keys))
    x = np.concatenate([images for images, _ in parts])
    y = np.concatenate([labels for _, labels in parts])
    return Table(x, y, None, None, published.classes, published.mean, 1.0 / published.std)


def files(keys: DataKeys) -> list[Path]:
    """The batches, in order, or the archive; none if only the hub is left to ask."""
    if not keys.data_dir:
        return []
    published = PUBLISHED[keys.dataset]
    here = Path(keys.data_dir).expanduser()
    for folder in (here / published.folder, here):
        found = [folder / name for name in published.batches]
        if all(path.is_file() for path in found):
            return found
    if (here / published.archive).is_file():
        return [here / published.archive]
    raise missing(keys)


def missing(keys: DataKeys) -> DataError:
    """The error that says which files were expected, where, and how to get them."""
    published = PUBLISHED[keys.dataset]
    looked, lacking = "no data-dir is set", ""
    if keys.data_dir:
        here = Path(keys.data_dir).expanduser()
        looked = f"not all in {here / published.folder} or {here}"
        if (here / published.folder).is_dir():
            gone = [n for n in published.batches if not (here / published.folder / n).is_file()]
            lacking = f" (missing: {', '.join(gone)})"
    return DataError(
        f"dataset={keys.dataset}: expected the files {', '.join(published.batches)} of the folder "
        f"{published.folder}, or {published.archive}; {looked}{lacking}. Set data-dir=FOLDER that "
        f"has the folder or the archive (the python version at www.cs.toronto.edu/~kriz/cifar.html)"
        ", or `pip install corsage[hub]` and leave data-dir empty to download them."
    )


def contents(paths: list[Path], published: Published) -> list[tuple[bytes, str]]:
    """What the batches hold, in order, each with its name for messages."""
    try:
        if paths[0].name != published.archive:
            return [(path.read_bytes(), str(path)) for path in paths]
        found: dict[str, bytes] = {}
        with tarfile.open(paths[0], "r:gz") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                folder, _, name = member.name.removeprefix("./").partition("/")
                if file is not None and folder == published.folder and name in published.batches:
                    found[name] = file.read()
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"{paths[0]}: damaged archive ({error}); download it again.") from error
    except OSError as error:  # a file that is no gzip file is one too
        cause = error.strerror or error
        raise DataError(f"{paths[0]}: cannot be read ({cause}); download it again.") from error
    gone = [name for name in published.batches if name not in found]
    if gone:
        raise DataError(
            f"{paths[0]}: has no {', '.join(f'{published.folder}/{n}' for n in gone)}; "
            "download it again."
        )
    return [(found[name], f"{paths[0]}: {name}") for name in published.batches]


def unpack(raw: bytes, where: str, published: Published) -> tuple[Array, Ints]:
    """Images and labels of one batch."""
    try:
        batch = Unpickler(io.BytesIO(raw), encoding="bytes").load()
    except Refused as error:
        raise DataError(
            f"{where}: refused, nothing in it was run: it asks for {error}, a batch of "
            f"{published.folder} holds arrays and lists only. Download it from its publisher."
        ) from error
    except Exception as error:  # damaged pickles raise nearly everything
        cause = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{where}: damaged ({cause}); download it again.") from error
    fields = batch if isinstance(batch, dict) else {}
    data, labels = (
        fields.get(name.encode(), fields.get(name)) for name in ("data", published.labels)
    )
    if not isinstance(data, Pixels) or not isinstance(labels, list):
        raise DataError(f"{where}: no data or {published.labels} in it; is it {published.folder}?")
    images = data.array
    if images.ndim != 2 or images.shape[1] != np.prod(PIXELS) or len(images) != len(labels):
        raise DataError(
            f"{where}: data of shape {images.shape} with {len(labels)} labels; expected "
            f"(images, {np.prod(PIXELS)}) and one label each."
        )
    return images.reshape(-1, *PIXELS), checked(labels, where, published)


def checked(labels: Any, where: str, published: Published) -> Ints:
    """The labels as numbers below the number of classes."""
    try:
        values, classes = class_labels(np.asarray(labels), where)
    except ValueError as error:
        raise DataError(f"{where}: labels that are not numbers ({error}).") from error
    if classes > published.classes:
        raise DataError(
            f"{where}: a label of {classes - 1}; there are {published.classes} classes."
        )
    return values


class Refused(Exception):
    """The name of something that a batch has no business with."""


class Unpickler(pickle.Unpickler):
    """Reads numbers, bytes, lists, dicts and arrays of bytes; nothing else can be named."""

    def find_class(self, module: str, name: str) -> Any:
        """Stand-ins for what a pickled array names; numpy itself is not let near the file."""
        arrays = ("numpy.core.multiarray", "numpy._core.multiarray")
        if module in arrays and name == "_reconstruct":
            return lambda *_: Pixels()
        if module == "numpy" and name in ("ndarray", "dtype"):
            return Pixels if name == "ndarray" else Kind
        raise Refused(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        """Batches have none."""
        raise Refused("a persistent object")


class Kind:
    """In the place of numpy.dtype: only its name is kept."""

    def __init__(self, name: Any, *_: Any) -> None:
        self.name = name.decode("ascii") if isinstance(name, bytes) else str(name)

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like: there is none in bytes."""


class Pixels:
    """In the place of numpy.ndarray: an array of bytes, its shape checked against its length."""

    array: Array = np.empty(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        """(version, shape, dtype, column by column?, bytes) as numpy writes it."""
        _, shape, kind, by_columns, raw = state
        if not isinstance(kind, Kind) or kind.name not in ("u1", "|u1", "uint8"):
            raise ValueError(f"an array of {getattr(kind, 'name', kind)}, not of bytes")
        values = np.frombuffer(raw, np.uint8)
        self.array = values.reshape(shape, order="F" if by_columns else "C")


def from_hub(published: Published, absent: DataError) -> list[tuple[Array, Ints]]:
    """Images and labels of both splits."""
    splits = hub.splits(published.hub, absent)
    parts = []
    for name in ("train", "test"):
        labels = checked(hub.column(splits[name], published.hub_labels), published.hub, published)
        images = hub.column(splits[name], "img").astype(np.uint8)
        parts.append((np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels))
    return parts


DATASET = DataSet(load, DataKeys, files)
