"""Limits of a device, which its owner sets in the node config, whatever a server asks.

A simulated node has none: there all is the user's own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from corsage.core.errors import ConfigError, Refused
from corsage.core.keys import Keys, flatten, key, names, nearest, read
from corsage.core.registry import ALGORITHMS

ZOO_WORD = "zoo"
"""Corsage's own models, among those that a device builds."""
MODELS_ROOM = 10
"""Numbers that a device holds for each parameter that it allows."""


@dataclass(frozen=True)
class Limits(Keys):
    """The most that a device does; all of these are keys of the node config."""

    title = "Limits of a device"

    strategies: tuple[str, ...] = key((), "algorithms it takes part in, with commas; empty: all")
    models: tuple[str, ...] = key(
        (ZOO_WORD,),
        "models it builds, with commas: zoo (Corsage's own), and package.module:factory",
    )
    min_share: int = key(
        3, "no row has a leverage above 1/min-share among those that sums are of; 0: any may", low=0
    )
    max_epochs: int = key(100, "epochs of one kind in one message", low=1)
    max_steps: int = key(
        100_000, "steps that a message counts itself (`pfedme-steps`, walks of coin methods)", low=1
    )
    max_parameters: int = key(
        20_000_000, "parameters of a model; what is held beside it is at most ten times that", low=1
    )
    max_seconds: float = key(3600.0, "seconds of work on one message", low=0.1)
    max_threads: int = key(
        0, "threads that a run may ask for; 0: as many as there are cores", low=0
    )

    @property
    def space(self) -> int:
        """The numbers that may be held at once."""
        return MODELS_ROOM * self.max_parameters

    def threads(self, asked: int) -> int:
        """As many threads as are asked for, if there may be so many."""
        return min(asked, self.max_threads or os.cpu_count() or 1)

    def check(self, limit: str, name: str, value: int) -> None:
        """Refuse a value beyond one of the limits."""
        most = flatten(self)[limit]
        if value > int(most):
            raise Refused(f"{name}={value} is more than this device allows ({limit}={most})")

    def check_space(self, what: str, count: int) -> None:
        """Refuse what would take too many numbers in memory."""
        if count > self.space:
            raise Refused(
                f"{what} would take {count:.3g} numbers, more than this device allows "
                f"(max-parameters={self.max_parameters}, times {MODELS_ROOM})"
            )


def limits_of(node_config: Mapping[str, Any]) -> Limits:
    """The limits that a node config sets, and the defaults of the others."""
    found = read(Limits, {k: v for k, v in node_config.items() if k in set(names(Limits))})
    for name in found.strategies:
        if name not in ALGORITHMS:
            raise ConfigError(f"node config: strategies={name}: none.{nearest(name, ALGORITHMS)}")
    for model in found.models:
        if model != ZOO_WORD and ":" not in model:
            raise ConfigError(f"node config: models={model}: neither zoo nor module:factory.")
    return found
