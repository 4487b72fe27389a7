"""Small data sets in exactly the formats of their publishers: CIFAR's batches, LEAF, GloVe."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

CIFAR = {
    "cifar10": ("cifar-10-batches-py", "cifar-10-python.tar.gz", 10),
    "cifar100": ("cifar-100-python", "cifar-100-python.tar.gz", 100),
}


def python2(value: Any) -> bytes:
    """A pickle as Python 2's `cPickle.dump(value, file, 2)` writes it: strings are bytes."""
    return b"\x80\x02" + part(value) + b"."


def part(value: Any) -> bytes:
    if isinstance(value, bytes):
        short = len(value) < 256
        head = b"U" + bytes([len(value)]) if short else b"T" + struct.pack("<i", len(value))
        return head + value
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"](" + b"".join(part(v) for v in value) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(part(k) + part(v) for k, v in value.items()) + b"u"
    assert isinstance(value, np.ndarray) and value.dtype.itemsize == 1
    make = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + part(0) + b"\x85"
    make += part(b"b") + b"\x87R"
    kind = b"cnumpy\ndtype\n" + part(value.dtype.str[1:].encode()) + part(0) + part(1) + b"\x87R("
    kind += part(3) + part(b"|") + b"NNN" + part(-1) + part(-1) + part(0) + b"tb"
    shape = b"(" + b"".join(part(n) for n in value.shape) + b"t"
    return make + b"(" + part(1) + shape + kind + b"\x89" + part(value.tobytes()) + b"tb"


def cifar_batches(name: str, per_batch: int, seed: int = 0) -> dict[str, dict[bytes, Any]]:
    """The content of every batch; a class is told by its images' brightness."""
    rng, classes = np.random.default_rng(seed), CIFAR[name][2]
    small = name == "cifar10"
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"] if small else "train test"
    batches = {}
    for batch in names if small else ("train", "test"):
        y = rng.integers(0, classes, per_batch)
        y[: min(classes, per_batch)] = np.arange(per_batch)[:classes]
        x = rng.integers(0, 40, (per_batch, 3072)) + (y * 215 // classes)[:, None]
        content: dict[bytes, Any] = {
            b"batch_label": batch.encode(),
            b"labels" if small else b"fine_labels": y.tolist(),
            b"data": x.astype(np.uint8),
            b"filenames": [b"a.png"] * per_batch,
        }
        batches[batch] = content if small else {**content, b"coarse_labels": (y // 5).tolist()}
    return batches


def write_cifar(folder: Path, name: str, per_batch: int = 20, packed: bool = False) -> Path:
    """The publisher's folder, or its archive, in `folder`; returns its path."""
    inside, archive, _ = CIFAR[name]
    files = {n: python2(c) for n, c in cifar_batches(name, per_batch).items()}
    files["readme.html"] = b"<html>"
    if not packed:
        (folder / inside).mkdir(parents=True)
        for file, raw in files.items():
            (folder / inside / file).write_bytes(raw)
        return folder / inside
    with tarfile.open(folder / archive, "w:gz") as tar:
        for file, raw in sorted(files.items(), reverse=True):
            info = tarfile.TarInfo(f"{inside}/{file}")
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    return folder / archive


def leaf(users: dict[str, tuple[list[Any], list[Any]]]) -> dict[str, Any]:
    """The content of one of LEAF's files."""
    return {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def character(label: int, writer: int) -> list[float]:
    """A picture of 784 numbers that tells its class and writer."""
    image = np.full(784, 255)
    image[label * 12 : label * 12 + 12] = writer
    return (image / 255).tolist()


def tweet(number: int, user: str, text: str) -> list[str]:
    return [str(number), "Mon Apr 06 22:19:49 PDT 2009", "NO_QUERY", user, text]


def write_glove(path: Path, words: str, width: int = 6) -> dict[str, np.ndarray[Any, Any]]:
    """A file of vectors as GloVe's; returns them."""
    rng = np.random.default_rng(1)
    vectors = {w: rng.normal(size=width).round(5).astype(np.float32) for w in words.split()}
    lines = [f"{w} {' '.join(f'{v:.5f}' for v in vector)}" for w, vector in vectors.items()]
    path.write_text("\n".join(lines) + "\n")
    return vectors
