"""Clusters that take their time, by a clock that passes only when the server waits; schedules."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from corsage.benchmarks.silent import Clock, Devices
from corsage.core.seeding import generator
from corsage.strategies.devices import exchange, network
from corsage.strategies.known_clusters import at_work, conversation, timeline
from corsage.strategies.rounds import reception

Schedule = Sequence[Mapping[str, int]]
"""For each round the clusters that are at work, and how old their centres are."""


@contextmanager
def stopped() -> Iterator[Clock]:
    """The clock of all that waits, or notes when things happen."""
    clock = Clock()
    with ExitStack() as stack:
        for module in (at_work, conversation, exchange, network, reception, timeline):
            stack.enter_context(mock.patch.object(module, "time", clock))
        yield clock


class Slow(Devices):
    """Nodes that work at the same time, each so slowly; time passes when the server waits."""

    patient = True


def constant(names: Sequence[str], rounds: int, age: int, slow: int = 1) -> Schedule:
    """The first clusters take part in every so manieth round alone."""
    return [{n: t % (age + 1) for n in names[:slow] if t % (age + 1)} for t in range(rounds)]


def random(names: Sequence[str], rounds: int, age: int, seed: int = 0) -> Schedule:
    """Each cluster is away with probability 1/2, for as long as its centre may be old."""
    rng = generator(seed, "away")
    ages, found = dict.fromkeys(names, 0), []
    for t in range(rounds):
        away = {n for n in names if t and ages[n] < age and rng.random() < 0.5}
        away = away if len(away) < len(names) else set(names[1:]) & away
        ages = {n: ages[n] + 1 if n in away else 0 for n in names}
        found.append({n: ages[n] for n in names if n in away})
    return found


def adversarial(names: Sequence[str], rounds: int, age: int) -> Schedule:
    """Every centre is as old as it may be, but for the one cluster whose turn it is."""
    joined, found = dict.fromkeys(names, 0), []
    for t in range(rounds):
        turn = {n for n in names if t - joined[n] > age} or {min(names, key=lambda n: joined[n])}
        there = set(names) if t == 0 else turn
        joined |= dict.fromkeys(there, t)
        found.append({n: t - joined[n] for n in names if n not in there})
    return found


SCHEDULES = {"constant": constant, "random": random, "adversarial": adversarial}


def recorded(folder: Path, strategy: str, schedule: Schedule) -> str:
    """A run folder whose rounds were those."""
    place = folder / strategy
    place.mkdir(parents=True, exist_ok=True)
    rows = [{"round": t, "timeline": {"stale": s}} for t, s in enumerate(schedule, 1)]
    (place / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


def there(schedule: Schedule, names: Sequence[str]) -> Any:
    """Which clusters take part in each round (rounds, k)."""
    return np.array([[name not in away for name in names] for away in schedule])
