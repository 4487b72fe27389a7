"""Data sets and methods of the bench: tables, to which a line is added."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from corsage.core.errors import ConfigError
from corsage.core.keys import nearest
from corsage.core.registry import ALGORITHMS

Keys = Mapping[str, Any]
DEALT = {"num-users": 100, "num-rounds": 100}
SETS: dict[str, Keys] = {
    "digits-s2": {"dataset": "digits", "partition": "shards", "num-users": 50, "num-rounds": 50},
    "digits-dir5": {
        "dataset": "digits",
        "partition": "dirichlet-by-class",
        "alpha": 5.0,
        "num-users": 50,
        "num-rounds": 50,
    },
    "moons": {"dataset": "moons", "num-rounds": 50, "hidden": "32"},
    "ellipses": {"dataset": "ellipses", "num-rounds": 50, "model": "linear"},
    "chem97": {"dataset": "chem97", "num-users": 200, "num-rounds": 50, "model": "linear"},
    "fashion-s2": {**DEALT, "dataset": "fashion-mnist", "partition": "shards"},
    "fashion-dir5": {
        **DEALT,
        "dataset": "fashion-mnist",
        "partition": "dirichlet-by-class",
        "alpha": 5.0,
    },
}
"""The keys of each data set; one whose file is not there is left out, by name."""

QUICK_SETS: dict[str, Keys] = {
    "digits-s2": {**SETS["digits-s2"], "num-users": 20, "num-rounds": 8, "hidden": "32"},
    "digits-dir5": {**SETS["digits-dir5"], "num-users": 20, "num-rounds": 8, "hidden": "32"},
    "moons": {**SETS["moons"], "num-rounds": 8},
}
"""The sets of `--quick`, which come with Corsage."""

COMMON: Keys = {
    "work": "equal",
    "work-epochs": 5.0,
    "evaluate-every": 5,
    "fraction-train": 0.3,
    "new-users": 0.2,
    "fine-tune-epochs": 0,
    "keep-models": "none",
}
"""The keys of every run: so many epochs of gradient steps a user and round, whatever the method."""

ROWS: dict[str, tuple[str, ...]] = {
    "fedavg": ("fedavg", "fedavg+ft", "fedavg+ft-all"),
}
"""The rows of a method, where it has more than its own: what further training adds at the end."""
OWN_KEYS: dict[str, Keys] = {"fedavg": {"fine-tune-epochs": 10}}
"""Keys of a method's runs."""

CONSTANT_ROW = "constant"
"""The row that is no method: one answer a user, the best for its training labels."""
ALONE_ROW, TOGETHER_ROW = "local", "fedavg+ft"
"""The rows that others are compared with."""
NOT_IN_BENCH = ("fedrep-convex", "fedrep-known", "fedrep-exact", "single-cluster", "local-clusters")
"""Methods of the two convex families, or that ask for clusters that are known."""


def methods() -> list[str]:
    """All that train by gradient steps on batches, references first."""
    found = [
        name
        for name, entry in ALGORITHMS.items()
        if entry.family in ("", "fedrep") and name not in NOT_IN_BENCH and not entry.of
    ]
    return [CONSTANT_ROW, "local", "fedavg", *(n for n in found if n not in ("local", "fedavg"))]


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
    words: Iterable[str], sets: Iterable[str], all_methods: Iterable[str]
) -> list[tuple[str, str]]:
    """The (method, set) that `--only` names: METHOD, @SET or METHOD@SET; none named: all."""
    methods_there = {plain(name): name for name in all_methods}
    sets_there = {plain(name): name for name in sets}
    found: dict[tuple[str, str], None] = {}
    for word in [*words] or ["@"]:
        method, _, place = word.partition("@")
        for what, known in ((method_of(method), methods_there), (place, sets_there)):
            if what and plain(what) not in known:
                raise ConfigError(f"--only {word}: no {what} here.{nearest(what, known.values())}")
        some = [methods_there[plain(method_of(method))]] if method else [*methods_there.values()]
        where = [sets_there[plain(place)]] if place else [*sets_there.values()]
        found |= {(one, at): None for at in where for one in some}
    return [*found]
