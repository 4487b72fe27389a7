"""`python -m corsage.benchmarks fuzz [--attacks N] [--seed S] [--strategies NAME,...]`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from corsage.benchmarks.fuzz.attacks import Attack, attacks
from corsage.benchmarks.fuzz.target import Outcome, Target
from corsage.core.registry import ALGORITHMS

SMALL: dict[str, Any] = {
    "num-users": 8,
    "num-rounds": 9,
    "fraction-train": 1.0,
    "hidden": "4",
    "head-epochs": 1,
    "fine-tune-epochs": 0,
}
KNOWN: dict[str, Any] = {
    "dataset": "ellipses",
    "partition": "natural",
    "num-users": 0,
    "users-per-cluster": 4,
    "num-clusters": 2,
    "model": "linear",
    "loss": "logistic",
    "known-gamma": 1,
    "known-lambda": 1,
    "single-cluster-lambda": 1,
}
HINGE: dict[str, Any] = {**KNOWN, "loss": "squared-hinge", "ridge": 0.001}
OWN: dict[str, dict[str, Any]] = {
    "fedrep-known": {"dataset": "ellipses", "partition": "natural", "num-users": 0,
                     "users-per-cluster": 4, "num-clusters": 2},
    "convex-clustering": {**HINGE, "convex-lambda": 0.03, "convex-certify-every": 1,
                          "convex-report": False},
    "local-clusters": HINGE,
}  # fmt: skip
KNOWN_CLUSTERS = tuple(
    name for name, a in ALGORITHMS.items() if "known_clusters" in (a.family, a.of) or a.of
)


def target(name: str) -> Target:
    """A strategy with keys that suit it."""
    own = OWN.get(name, KNOWN if name in KNOWN_CLUSTERS else {})
    return Target(name, {**SMALL, **own, "strategy": name})


def played(
    targets: Sequence[Target], number: int, seed: int
) -> Iterator[tuple[Target, Attack, Outcome]]:
    """So many attacks that change something, strategy by strategy and attack by attack."""
    every, rng, count, turn = attacks(), np.random.default_rng(seed), 0, 0
    order = [(t, a) for a in every for t in targets]
    while count < number:
        if turn % len(order) == 0:
            order = [order[i] for i in rng.permutation(len(order))]
        one, attack = order[turn % len(order)]
        turn += 1
        if (outcome := one.attacked(attack, rng)) is not None:
            count += 1
            yield one, attack, outcome
