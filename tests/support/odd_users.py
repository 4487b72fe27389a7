"""Users that a linear model can say little of: one row, few rows, features that say nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from corsage.core.arrays import Floats

USERS, FEATURES, ROWS = 12, 4, 12
ODD = ("one row", "few rows", "constant feature", "repeated feature", "one label")
"""What the first users have; all others have enough of everything."""


def rows_of(kind: str, x: Floats) -> Floats:
    """A user's training rows."""
    if kind == "one row":
        return x[:1]
    if kind == "few rows":
        return x[:3]
    if kind == "constant feature":
        x[:, 1] = 3.0
    if kind == "repeated feature":
        x[:, 2] = x[:, 0]
    return x


def odd_table(folder: Path, *, numbers: bool, everybody: str = "", separable: bool = False) -> Path:
    """An NPZ file in which the first users are odd, or all of them in the same way.

    Parameters
    ----------
    folder : where it is written.
    numbers : whether labels are numbers, or two classes.
    everybody : one of `ODD` for all users.
    separable : every user's classes can be told apart.
    """
    rng = np.random.default_rng(3)
    parts: dict[str, list[Any]] = {name: [] for name in ("x", "y", "user", "cluster", "test")}
    for user in range(USERS):
        kind = everybody or (ODD[user] if user < len(ODD) else "")
        train = rows_of(kind, rng.standard_normal((ROWS, FEATURES)))
        x = np.concatenate([train, rng.standard_normal((2, FEATURES))])
        theta = np.array([1.0, -1.0, 0.5, 0.0]) + user % 3 + 0.3 * rng.standard_normal(FEATURES)
        noise = (0.0 if separable else 1.0) * rng.standard_normal(len(x))
        score = x @ theta + noise
        y = score if numbers else (score > 0).astype(float)
        if kind == "one label":
            y[:] = 1.0
        parts["x"].append(x)
        parts["y"].append(y)
        parts["user"] += [f"u{user}"] * len(x)
        parts["cluster"] += [f"c{user % 3}"] * len(x)
        parts["test"] += [False] * len(train) + [True, True]
    path = folder / "odd.npz"
    x, y = np.concatenate(parts["x"]), np.concatenate(parts["y"])
    whole = y if numbers else y.astype(np.int64)
    rest = {name: np.array(parts[name]) for name in ("user", "cluster", "test")}
    np.savez(path, x=x, y=whole, **rest)
    return path
