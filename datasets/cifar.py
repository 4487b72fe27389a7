"""CIFAR-10 and CIFAR-100: the publisher's binary version, or the Hugging Face hub.

Its files are records of a label (CIFAR-100: a coarse and a fine one) and 3,072 pixels, a byte each.
The training and test files become one pool of 60,000 images, dealt and split like any other data
set: n users with `test-fraction=0.1667` have 50,000/n training samples each. FedRep's authors train
with `augment=crop,flip` and a mean and deviation a channel: `normalize=channels`, here those of the
data (theirs are ImageNet's for CIFAR-10).
"""

from __future__ import annotations

import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from corsage.core.arrays import Array, Ints
from corsage.core.configuration.key_groups import DataKeys
from corsage.core.errors import DataError
from corsage.core.keys import key
from corsage.datasets import hub
from corsage.datasets.data_set import DataSet
from corsage.datasets.sample_table import Table, labels_below

PIXELS = (3, 32, 32)


class Published(NamedTuple):
    """A data set's files and the same on the hub; the last of `heads` labels a record counts."""

    name: str
    kind: str
    files: tuple[str, ...]
    hub: str
    column: str
    classes: int
    heads: int

    @property
    def folder(self) -> str:
        """The folder that the archive unpacks to."""
        return f"{self.name}-{self.kind}"

    @property
    def archive(self) -> str:
        """The archive that the publisher offers."""
        return f"{self.name}-binary.tar.gz"


TEN = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
HUNDRED = ("train.bin", "test.bin")
CIFAR_SETS = {
    "cifar10": Published("cifar-10", "batches-bin", TEN, "uoft-cs/cifar10", "label", 10, 1),
    "cifar100": Published("cifar-100", "binary", HUNDRED, "uoft-cs/cifar100", "fine_label", 100, 2),
}
PIXEL_UNITS = {"cifar10": (120.707, 64.15), "cifar100": (121.936, 68.389)}
"""Mean and deviation of all pixels (0 to 255)."""
CHANNELS = {
    "cifar10": ((125.307, 122.950, 113.865), (62.993, 62.089, 66.705)),
    "cifar100": ((129.304, 124.070, 112.434), (68.170, 65.392, 70.418)),
}
"""The same of red, green and blue ones."""


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
    published, paths = CIFAR_SETS[keys.dataset], files(keys)
    if paths:
        parts = [records(raw, where, published) for where, raw in contents(paths, published)]
    else:
        parts = from_hub(published, missing(keys))
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    if keys.normalize == "all":
        mean, std = PIXEL_UNITS[keys.dataset]
        return Table(x, y, None, None, published.classes, mean, 1.0 / std)
    means, stds = CHANNELS[keys.dataset]
    scales = tuple(1.0 / std for std in stds)
    return Table(x, y, None, None, published.classes, means, scales)


def files(keys: DataKeys) -> list[Path]:
    """The files of records, in order, or the archive; none if only the hub is left to ask."""
    if not keys.data_dir:
        return []
    published, here = CIFAR_SETS[keys.dataset], Path(keys.data_dir).expanduser()
    for folder in (here / published.folder, here):
        found = [folder / name for name in published.files]
        if all(path.is_file() for path in found):
            return found
    if (here / published.archive).is_file():
        return [here / published.archive]
    raise missing(keys)


def missing(keys: DataKeys) -> DataError:
    """The error that says which files were expected, where, and how to get them."""
    published, looked = CIFAR_SETS[keys.dataset], "no data-dir is set"
    if keys.data_dir:
        here = Path(keys.data_dir).expanduser()
        looked = f"not all in {here / published.folder} or {here}"
        if (here / published.folder).is_dir():
            gone = [n for n in published.files if not (here / published.folder / n).is_file()]
            looked += f" (missing: {', '.join(gone)})"
        elif any(here.glob(f"{published.name}-*py*")):
            looked += " (the Python version that is there holds pickles, which can run any code)"
    return DataError(
        f"dataset={keys.dataset}: expected the files {', '.join(published.files)} of the folder "
        f"{published.folder}, or {published.archive}; {looked}. Get {published.archive}, the "
        "binary version at www.cs.toronto.edu/~kriz/cifar.html, and set data-dir=FOLDER that has "
        "it, or `pip install corsage[hub]` and leave data-dir empty to download the images."
    )


def contents(paths: list[Path], published: Published) -> list[tuple[str, bytes]]:
    """The files of records, each under its name for messages."""
    try:
        if paths[0].name != published.archive:
            return [(str(path), path.read_bytes()) for path in paths]
        with tarfile.open(paths[0], "r:gz") as archive:
            held = {m.name.removeprefix("./"): m for m in archive if m.isfile()}
            wanted = [f"{published.folder}/{name}" for name in published.files]
            if gone := [name for name in wanted if name not in held]:
                raise DataError(f"{paths[0]}: has no {', '.join(gone)}; download it again.")
            opened = [(name, archive.extractfile(held[name])) for name in wanted]
            return [(f"{paths[0]}: {name}", file.read()) for name, file in opened if file]
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(f"{paths[0]}: cannot be read ({error}); download it again.") from error


def records(raw: bytes, where: str, published: Published) -> tuple[Array, Ints]:
    """Images and labels of one file."""
    size = published.heads + int(np.prod(PIXELS))
    if not raw or len(raw) % size:
        raise DataError(
            f"{where}: {len(raw)} bytes are not records of {size} bytes, as {published.folder} "
            "has them; download it again."
        )
    rows = np.frombuffer(raw, np.uint8).reshape(-1, size)
    labels = labels_below(rows[:, published.heads - 1], published.classes, where)
    return rows[:, published.heads :].reshape(-1, *PIXELS), labels


def from_hub(published: Published, absent: DataError) -> list[tuple[Array, Ints]]:
    """Images and labels of both splits."""
    splits, parts = hub.splits(published.hub, absent), []
    for split in (splits["train"], splits["test"]):
        labels = hub.column(split, published.column)
        images = hub.column(split, "img").astype(np.uint8).transpose(0, 3, 1, 2)
        labels = labels_below(labels, published.classes, published.hub)
        parts.append((np.ascontiguousarray(images), labels))
    return parts


DATASET = DataSet(load, CifarKeys, files)
