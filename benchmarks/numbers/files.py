"""The files of data and of strengths that the small runs read; the same wherever they are made."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

USERS = 12


def write_files(folder: Path) -> None:
    """Write them all."""
    write_names(folder)
    write_table(folder / "table.csv")
    rng = np.random.default_rng(1)
    user, label = np.repeat(np.arange(6), 20), rng.integers(0, 3, 120)
    pixels = rng.integers(0, 256, (120, 16, 16), dtype=np.uint8)
    np.savez(folder / "images.npz", x=pixels, label=label, user=user)
    sequences = rng.normal(size=(120, 5, 4)).astype(np.float32)
    np.savez(folder / "sequences.npz", x=sequences, label=label, user=user)


def write_names(folder: Path) -> None:
    """What JSON files say of users and of clusters."""
    users = [str(user) for user in range(USERS)]
    contents = {
        "clusters": {user: "abc"[int(user) % 3] for user in users},
        "some-clusters": {user: "ab"[int(user) % 2] for user in users[:9]},
        "gammas": {user: 0.5 + 0.25 * (int(user) % 4) for user in users},
        "lambdas": {"0": 0.5, "1": 1.0, "2": 2.0},
    }
    for name, content in contents.items():
        Path(folder, f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


def write_table(path: Path) -> None:
    """Users in two groups, three numbers, and a class."""
    values = np.random.default_rng(0).normal(size=(120, 3))
    lines = ["user,group,a,b,c,kind"]
    for row, (a, b, c) in enumerate(values):
        user, group, kind = f"u{row // 20}", "xy"[row // 20 % 2], int(a + c > 0)
        lines.append(f"{user},{group},{a:.6f},{b:.6f},{c:.6f},{kind}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
