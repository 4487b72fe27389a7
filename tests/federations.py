"""Small federations on the local engine, for all tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from corsage.app.callbacks import Callback
from corsage.app.client_app import app
from corsage.app.config import Config
from corsage.app.local_grid import LocalGrid
from corsage.strategies import strategy_class
from corsage.strategies.base import Result, Strategy

SMALL: dict[str, Any] = {
    "num-users": 12,
    "num-rounds": 4,
    "fraction-train": 0.5,
    "hidden": "16",
    "head-epochs": 2,
    "evaluate-every": 2,
    "fine-tune-epochs": 0,
}


class Notes(Callback):
    """Remembers what was noted and every row."""

    shows_notes = True

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.rows: list[dict[str, Any]] = []

    def on_note(self, strategy: Strategy, text: str) -> None:
        self.notes.append(text)

    def on_round_end(self, strategy: Strategy, row: dict[str, Any]) -> None:
        self.rows.append(row)


def federate(
    name: str, nodes: int = 1, callbacks: list[Callback] | None = None, **keys: Any
) -> tuple[Strategy, Result, Notes]:
    """Run one strategy with small defaults; keys may be given by keyword."""
    config = Config.parse({**SMALL, **{k.replace("_", "-"): v for k, v in keys.items()}})
    notes = Notes()
    strategy = strategy_class(name)(config, [notes, *(callbacks or [])])
    grid = LocalGrid(app, nodes)
    return strategy, strategy.start(grid), notes


def same_arrays(one: Any, other: Any, tolerance: float = 1e-5) -> bool:
    """Whether two array records hold the same arrays, up to a tolerance."""
    return list(one) == list(other) and all(
        np.allclose(one[name].numpy(), other[name].numpy(), rtol=0, atol=tolerance) for name in one
    )
