"""Small federations on the local engine, for all tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from corsage.app.client_app import app
from corsage.app.local_grid import LocalGrid
from corsage.core.configuration.config import Config
from corsage.core.registry import ALGORITHMS
from corsage.strategies import strategy_class
from corsage.strategies.rounds.base import Result, Strategy
from corsage.strategies.rounds.callbacks import Callback

SMALL: dict[str, Any] = {
    "num-users": 12,
    "num-rounds": 4,
    "fraction-train": 0.5,
    "hidden": "16",
    "head-epochs": 2,
    "evaluate-every": 2,
    "fine-tune-epochs": 0,
}

CLUSTER_MAP = str(Path(__file__).with_name("clusters.json"))
"""Twelve users in the known clusters a, b, c, in turns."""

# Twelve users in three known clusters, two classes, and a convex loss: what some methods need.
ELLIPSES: dict[str, Any] = {
    "dataset": "ellipses",
    "partition": "natural",
    "num-users": 0,
    "users-per-cluster": 4,
    "model": "linear",
    "loss": "logistic",
}
TIES: dict[str, Any] = {"known-gamma": 1, "known-lambda": 1, "single-cluster-lambda": 1}
KNOWN_CLUSTERS = (
    "async-l2gd",
    "async-al2sgd",
    "mixed-model",
    "random-intercepts",
    "single-cluster",
    "exact-cluster",
    "exact-global",
    "exact-local",
)
SUITED: dict[str, dict[str, Any]] = {name: {**ELLIPSES, **TIES} for name in KNOWN_CLUSTERS}
"""Keys for the methods that do not take the defaults."""
SUITED["convex-clustering"] = {
    **ELLIPSES,
    "loss": "squared-hinge",
    "ridge": 0.001,
    "convex-lambda": 0.03,
    "convex-tolerance": 1e-13,
    "convex-report": False,
}
SUITED["fedrep-known"] = {"cluster-map": CLUSTER_MAP}
SUITED["local-clusters"] = {**ELLIPSES, "loss": "squared-hinge", "ridge": 0.001}
SUITED["knn-per"] = {"knn-per-k": 10}  # of two classes a memory is right after one round
SUITED["fedrep-exact"] = {"fedrep-exact-body-rounds": 29, "hidden": "20", "lr": 0.001}
CONVEX = frozenset(name for name, keys in SUITED.items() if "dataset" in keys)
"""Methods for models with a convex loss: they are run on the ellipses, all others on digits."""
ASK_ALL = frozenset((*KNOWN_CLUSTERS, "local-clusters", "fedrep-exact"))
"""Methods that ask all users in every round."""
SEEDLESS = ASK_ALL - {"async-l2gd", "async-al2sgd", "fedrep-exact"}
"""Methods that draw nothing at random."""
ONE_MEAN = ("fedavg", "fedprox", "fedrep", "ditto", "fedper", "pfedme", "perfedavg", "apfl")
ONE_MEAN += ("fedbabu", "lg-fedavg", "knn-per", "feddyn", "fedlc", "fedbn", "fedrod", "mr-mtl")
ONE_MEAN += ("fedala", "moon", "fedem", "gpfl")
"""Strategies whose users send back what they got, for its mean: so Flower's wrappers can work."""
KINDS = [
    name
    for name, one in ALGORITHMS.items()
    if name in ("fedavg", "fedrep", "ditto", "knn-per", "fedem", "exact-local")
    or not (one.of or name in ONE_MEAN)
]
"""Strategies of every kind of exchange: what hangs on no more is tried on these."""


class Notes(Callback):
    """Remembers what was noted and every row."""

    shows_notes = reports = True

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.rows: list[dict[str, Any]] = []

    def on_note(self, text: str) -> None:
        self.notes.append(text)

    def on_round_end(self, strategy: Strategy[Any, Any], row: dict[str, Any]) -> None:
        self.rows.append(row)


def settings(name: str, **keys: Any) -> Config:
    """Small defaults, and those that suit the strategy; keys may be given by keyword."""
    own = {key.replace("_", "-"): value for key, value in keys.items()}
    return Config.parse({**SMALL, **SUITED.get(name, {}), **own})


def federate(
    name: str,
    nodes: int = 1,
    callbacks: list[Callback] | None = None,
    grid: LocalGrid | None = None,
    **keys: Any,
) -> tuple[Strategy[Any, Any], Result, Notes]:
    """Run one strategy with `settings`, on a grid of its own if none is given."""
    notes = Notes()
    strategy = strategy_class(name)(settings(name, **keys), [notes, *(callbacks or [])])
    return strategy, strategy.start(grid or LocalGrid(app, nodes)), notes


def reference(name: str, nodes: int = 1, **keys: Any) -> tuple[Strategy[Any, Any], Result, Notes]:
    """`federate` computed once in each process: to compare with, never to change."""
    return _once(name, nodes, tuple(sorted(keys.items())))


@cache
def _once(
    name: str, nodes: int, keys: tuple[tuple[str, Any], ...]
) -> tuple[Strategy[Any, Any], Result, Notes]:
    return federate(name, nodes, **dict(keys))


def same_arrays(one: Any, other: Any, tolerance: float = 1e-5) -> bool:
    """Whether two array records hold the same arrays, up to a tolerance."""
    return list(one) == list(other) and all(
        np.allclose(one[name].numpy(), other[name].numpy(), rtol=0, atol=tolerance) for name in one
    )
