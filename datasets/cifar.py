"""CIFAR-10 and CIFAR-100: the publisher's python batches, or the Hugging Face hub.

The batches are pickles. They are read by an unpickler that knows numpy's arrays by stand-ins of
its own and refuses everything else by name: no code of the file's choosing ever runs. The published
training and test files become one pool of 60,000 images, dealt and split like any other data set:
n users with `test-fraction=0.1667` have 50,000/n training samples each. FedRep's authors train with
`augment=crop,flip` and a mean and deviation a channel: `normalize=channels`, here those of the data
(theirs are ImageNet's for CIFAR-10).
"""

from __future__ import annotations

import io
import pickle
import tarfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from corsage.core.arrays import Array, Ints
from corsage.core.errors import DataError
from corsage.core.groups import DataKeys
from corsage.core.keys import key
from corsage.datasets import hub
from corsage.datasets.data_set import DataSet
from corsage.datasets.table import Table, class_labels

PIXELS = (3, 32, 32)


@dataclass(frozen=True)
class Published:
    """Where a data set is found, and the mean and deviation of its pixels (0 to 255): of all, and
    of red, green and blue."""

    hub: str
    archive: str
    folder: str
    batches: tuple[str, ...]
    labels: str
    hub_labels: str
    classes: int
    mean: float
    std: float
    means: tuple[float, ...]
    stds: tuple[float, ...]


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
        (125.307, 122.950, 113.865),
        (62.993, 62.089, 66.705),
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
        (129.304, 124.070, 112.434),
        (68.170, 65.392, 70.418),
    ),
}


@dataclass(frozen=True)
class CifarKeys(DataKeys):
    """Keys of CIFAR."""

    normalize: str = key(
        "all",
        "pixels have mean 0 and deviation 1: all of them together, or each channel by itself",
        choices=("all", "channels"),
    )


def load(keys: CifarKeys) -> Table:
    """All images of `keys.dataset` as (60000, 3, 32, 32) uint8, with the fine labels."""
    published = PUBLISHED[keys.dataset]
    paths = files(keys)
    if paths:
        parts = [unpack(raw, where, published) for raw, where in contents(paths, published)]
    else:
        parts = from_hub(published, missing(keys))
    x = np.concatenate([images for images, _ in parts])
    y = np.concatenate([labels for _, labels in parts])
    if keys.normalize == "all":
        return Table(x, y, None, None, published.classes, published.mean, 1.0 / published.std)
    scales = tuple(1.0 / std for std in published.stds)
    return Table(x, y, None, None, published.classes, published.means, scales)


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
    if isinstance(labels, Numbers) and labels.array.ndim == 1:
        labels = labels.array.tolist()
    if not isinstance(data, Numbers) or not isinstance(labels, list):
        raise DataError(f"{where}: no data or {published.labels} in it; is it {published.folder}?")
    images = data.array
    if images.dtype != np.uint8:
        raise DataError(f"{where}: an array of {images.dtype}, not of bytes; download it again.")
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
    """Reads numbers, bytes, lists, dicts and arrays of whole numbers; nothing else can be named."""

    def find_class(self, module: str, name: str) -> Any:
        """Stand-ins for what a pickled array names; numpy itself is not let near the file.

        Python 2 and 3 and numpy 1 and 2 name different things, and so do a pickle's protocols.
        """
        known = STAND_INS.get(f"{module.replace('numpy._core', 'numpy.core')}.{name}")
        if known is None:
            raise Refused(f"{module}.{name}")
        return known()

    def persistent_load(self, pid: Any) -> Any:
        """Batches have none."""
        raise Refused("a persistent object")


class Kind:
    """In the place of numpy.dtype: its name, and whether its numbers begin with the high byte."""

    def __init__(self, name: Any, *_: Any) -> None:
        self.name = (name.decode("ascii") if isinstance(name, bytes) else str(name)).lstrip("|<")
        self.big = False

    def __setstate__(self, state: Any) -> None:
        """(version, byte order, ...) as numpy writes it."""
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        self.big = order == ">"

    def read(self, raw: Any) -> Array:
        """Numbers out of their bytes."""
        if self.name not in KINDS:
            raise ValueError(f"an array of {self.name}, not of bytes")
        return np.frombuffer(raw, np.dtype(("<", ">")[self.big] + KINDS[self.name]))


class Numbers:
    """In the place of numpy.ndarray: its shape is checked against its length."""

    array: Array = np.empty(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        """(version, shape, dtype, column by column?, bytes) as numpy writes it."""
        _, shape, kind, by_columns, raw = state
        self.fill(raw, kind, shape, "F" if by_columns else "C")

    def fill(self, raw: Any, kind: Any, shape: Any, order: Any) -> Numbers:
        """Take the numbers in."""
        if not isinstance(kind, Kind):
            raise ValueError("an array of no kind")
        self.array = kind.read(raw).reshape(shape, order="F" if order == "F" else "C")
        return self


def number(kind: Any, raw: Any) -> int:
    """In the place of numpy's scalar."""
    (value,) = Numbers().fill(raw, kind, (1,), "C").array.tolist()
    return int(value)


def latin1(text: Any, encoding: Any) -> bytes:
    """In the place of codecs.encode: Python 3 writes bytes so in protocols 0 to 2."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise ValueError("bytes that are written in a way of their own")
    return text.encode("latin-1")


KINDS = {"u1": "u1", "uint8": "u1", "i1": "i1", "i4": "i4", "i8": "i8"}
STAND_INS: Mapping[str, Callable[[], Any]] = {
    "numpy.ndarray": lambda: Numbers,
    "numpy.dtype": lambda: Kind,
    "numpy.core.multiarray._reconstruct": lambda: lambda *_: Numbers(),
    "numpy.core.multiarray.scalar": lambda: number,
    "numpy.core.numeric._frombuffer": lambda: lambda *all_of_it: Numbers().fill(*all_of_it),
    "_codecs.encode": lambda: latin1,
}
"""What a batch may name, and what it gets."""


def from_hub(published: Published, absent: DataError) -> list[tuple[Array, Ints]]:
    """Images and labels of both splits."""
    splits = hub.splits(published.hub, absent)
    parts = []
    for name in ("train", "test"):
        labels = checked(hub.column(splits[name], published.hub_labels), published.hub, published)
        images = hub.column(splits[name], "img").astype(np.uint8)
        parts.append((np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels))
    return parts


DATASET = DataSet(load, CifarKeys, files)
