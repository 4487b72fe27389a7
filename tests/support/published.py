"""Small data sets in exactly the formats of their publishers: CIFAR's records, LEAF, GloVe."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

CIFAR = {
    "cifar10": ("cifar-10-batches-bin", "cifar-10-binary.tar.gz", 10),
    "cifar100": ("cifar-100-binary", "cifar-100-binary.tar.gz", 100),
}


def cifar_batches(name: str, per_batch: int, seed: int = 0) -> dict[str, tuple[Any, Any]]:
    """Labels and pixels of every file; a class is told by its images' brightness."""
    rng, classes = np.random.default_rng(seed), CIFAR[name][2]
    small = name == "cifar10"
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"] if small else []
    batches = {}
    for batch in names or ("train", "test"):
        y = rng.integers(0, classes, per_batch)
        y[: min(classes, per_batch)] = np.arange(per_batch)[:classes]
        x = rng.integers(0, 40, (per_batch, 3072)) + (y * 215 // classes)[:, None]
        batches[f"{batch}.bin"] = y, x.astype(np.uint8)
    return batches


def records(name: str, y: Any, x: Any) -> bytes:
    """A file of records; CIFAR-100 has its coarse labels first."""
    heads = [y] if name == "cifar10" else [y // 5, y]
    return np.column_stack([*heads, x]).astype(np.uint8).tobytes()


def write_cifar(folder: Path, name: str, per_batch: int = 20, packed: bool = False) -> Path:
    """The publisher's folder, or its archive, in `folder`; returns its path."""
    inside, archive, _ = CIFAR[name]
    files = {n: records(name, *c) for n, c in cifar_batches(name, per_batch).items()}
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
