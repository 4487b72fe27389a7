"""Users of two kinds: they see the same digits, and one kind has them numbered from the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

USERS = 10


def two_kinds(folder: Path) -> dict[str, Any]:
    """Keys of a federation on such data: u0, ..., u4 are of one kind, u5, ..., u9 of the other."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))[: 100 * USERS]
    user = np.repeat(np.arange(USERS), 100)
    labels = np.where(user < USERS // 2, y[order], 9 - y[order])
    pixels = (x[order].reshape(-1, 1, 8, 8) / 8 - 1).astype(np.float32)
    kind = np.where(user < USERS // 2, "plain", "turned")
    names = np.array([f"u{i}" for i in user])
    np.savez(folder / "kinds.npz", x=pixels, label=labels, user=names, kind=kind)
    return {
        "dataset": "npz",
        "data_file": str(folder / "kinds.npz"),
        "partition": "natural",
        "cluster_column": "kind",
        "num_users": 0,
        "lr": 0.1,
        "momentum": 0.5,
        "hidden": "32",
    }


def is_turned(user: str) -> bool:
    """Whether a user is of the second kind."""
    return int(user[1:]) >= USERS // 2
