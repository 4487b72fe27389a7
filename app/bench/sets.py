"""Data sets and methods of the bench: tables, to which a line is added."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from corsage.core.errors import ConfigError
from corsage.core.keys import nearest
from corsage.core.registry import ALGORITHMS

Keys = Mapping[str, Any]
ALL_TRAIN: Keys = {"fraction-train": 1.0}
"""Of a dozen users or fewer all train in every round."""
FASHION: Keys = {"dataset": "fashion-mnist", "num-users": 100, "num-rounds": 20, "hidden": "64",
                 "max-train-samples": 200, "batch-size": 20}  # fmt: skip
"""A tenth of what 50 rounds of 200 hidden units on all samples take, which were most of a bench."""
SETS: dict[str, Keys] = {
    "school": {"dataset": "school", "num-rounds": 50},
    "heart": {**ALL_TRAIN, "dataset": "heart", "num-rounds": 50},
    "beijing-air": {**ALL_TRAIN, "dataset": "beijing-air", "num-rounds": 30},
    "flights": {"dataset": "flights", "num-users": 100, "num-rounds": 30},
    "tv16": {"dataset": "tv16", "num-rounds": 50},
    "movielens": {"dataset": "movielens", "num-users": 100, "num-rounds": 30},
    "watch": {**ALL_TRAIN, "dataset": "watch", "num-rounds": 20},
    "spoken-digits": {**ALL_TRAIN, "dataset": "spoken-digits", "num-rounds": 20},
    "sotu": {"dataset": "sotu", "num-rounds": 20, "batch-size": 50},
    "fashion-s2": {**FASHION, "partition": "shards"},
    "fashion-dir5": {**FASHION, "partition": "dirichlet-by-class", "alpha": 5.0},
}  # fmt: skip
"""The keys of each data set; one whose file is not there is left out, by name.

Of planes and of who rates films 100 are drawn: lines have values, and sums, of each user.
"""

QUICK_DIGITS: Keys = {"dataset": "digits", "num-users": 20, "num-rounds": 8, "hidden": "32"}
QUICK_SETS: dict[str, Keys] = {
    "digits-s2": {**QUICK_DIGITS, "partition": "shards"},
    "digits-dir5": {**QUICK_DIGITS, "partition": "dirichlet-by-class", "alpha": 5.0},
    "moons": {"dataset": "moons", "num-rounds": 8, "hidden": "32"},
}
"""The sets of `--quick`, which come with Corsage."""

COMMON_KEYS: Keys = {
    "work": "equal",
    "work-epochs": 5.0,
    "evaluate-every": 5,
    "fraction-train": 0.3,
    "new-users": 0.2,
    "fine-tune-epochs": 0,
    "keep-models": "none",
}
"""The keys of every run: so many epochs of gradient steps a user and round, whatever the method."""

TUNED_END: Keys = {"fine-tune-epochs": 10}
HEADS = ("exact", "gauss", "prior", "auto")
ROWS: dict[str, tuple[str, ...]] = {
    "fedavg": ("fedavg", "fedavg+ft", "fedavg+ft-all", *(f"fedavg+{head}" for head in HEADS)),
    "fedbabu": ("fedbabu+ft-all",),  # the paper's personal models: `fedbabu` has a random head
}
"""The rows of a method, where it has more than its own: what its end adds.

A row that a set cannot have, as of class frequencies where labels are numbers, is not there.
"""
OWN_KEYS: dict[str, Keys] = {
    "fedavg": {**TUNED_END, "end-heads": ",".join(HEADS)},
    "fedbabu": TUNED_END,
    "mixed-model": {"model": "linear"},
}
"""Keys of a method's runs."""

CONSTANT_ROW = "constant"
"""The row that is no method: one answer a user, the best for its training labels."""
ALONE_ROW, TOGETHER_ROW = "local", "fedavg+ft"
"""The rows that others are compared with."""
WITHOUT_RATE = (CONSTANT_ROW, "mixed-model")
"""Rows that have nothing to tune, and one trial."""
ONLY_ON = {"mixed-model": ("school", "heart", "beijing-air", "flights", "tv16", "moons")}
"""Sets of a method that is not for all: of numbers and of two classes, whose inputs are columns."""
NOT_IN_BENCH = ("fedrep-convex", "fedrep-known", "fedrep-exact", "single-cluster", "local-clusters")
"""Methods of the two convex families, or that ask for clusters that are known."""


def methods() -> list[str]:
    """All that train by gradient steps on batches, references first, and the exact one."""
    found = [
        name
        for name, entry in ALGORITHMS.items()
        if entry.family in ("", "fedrep") and name not in NOT_IN_BENCH and not entry.of
    ]
    first = (*WITHOUT_RATE, "local", "fedavg")
    return [*first, *(name for name in found if name not in first)]


def rows_of(method: str) -> tuple[str, ...]:
    """The rows of a method."""
    return ROWS.get(method, (method,))


def method_of(row: str) -> str:
    """The method of a row."""
    return row.partition("+")[0]


def plain(name: str) -> str:
    """A name without what people spell in several ways: `FedRep`, `LG-FedAvg`."""
    return name.replace("-", "").replace("_", "").lower()


def chosen(
    words: Sequence[str], sets: Iterable[str], all_methods: Sequence[str]
) -> list[tuple[str, str]]:
    """The (method, set) that `--only` names: METHOD, @SET or METHOD@SET; none named: all."""
    sets_there = {plain(name): name for name in sets}
    found: dict[tuple[str, str], None] = {}
    rows_there = {plain(row): row for name in all_methods for row in (name, *rows_of(name))}
    for word in words or ["@"]:
        method, _, place = word.strip().partition("@")
        for what, known in ((method, rows_there), (place, sets_there)):
            if what and plain(what) not in known:
                raise ConfigError(f"--only {word}: no {what} here.{nearest(what, known.values())}")
        if words and not method and not place:
            raise ConfigError(f"--only {word}: needs METHOD, @SET or METHOD@SET.")
        some = [method_of(rows_there[plain(method)])] if method else [*all_methods]
        where = [sets_there[plain(place)]] if place else [*sets_there.values()]
        own = {(m, at): None for at in where for m in some if at in ONLY_ON.get(m, where)}
        if not own:
            raise ConfigError(f"--only {word}: {some[0]} is not for {', '.join(where)}.")
        found |= own
    return [*found]
