"""Strategies: what the server combines, one file an algorithm.

`ALGORITHMS` is the registry. A name `foo` stands for the class it names in `strategies/foo.py`, the
class of that name with `Client` behind it in `clients/foo.py`, and, if the algorithm has keys of
its own, the dataclass with `Keys` behind it in the strategy's file. Files of a name `foo-bar` are
called `foo_bar.py`.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corsage.app.keys import Keys
    from corsage.clients.base import Client
    from corsage.strategies.base import Strategy

ALGORITHMS: dict[str, str] = {
    "fedrep": "FedRep",
    "fedavg": "FedAvg",
    "local": "Local",
    "fedprox": "FedProx",
    "scaffold": "Scaffold",
    "ditto": "Ditto",
    "pfedme": "PFedMe",
    "l2gd": "L2GD",
    "fedmtl": "FedMTL",
    "ifca": "IFCA",
    "cfl": "CFL",
    "fedper": "FedPer",
    "lg-fedavg": "LGFedAvg",
    "apfl": "APFL",
    "perfedavg": "PerFedAvg",
    "async-l2gd": "AsyncL2GD",
    "async-al2sgd": "AsyncAL2SGD",
    "mixed-model": "MixedModel",
    "single-cluster": "SingleCluster",
    "exact-cluster": "ExactCluster",
    "exact-global": "ExactGlobal",
    "exact-local": "ExactLocal",
    "convex-clustering": "ConvexClustering",
    "local-clusters": "LocalClusters",
}


def module_of(name: str, folder: str) -> ModuleType:
    """An algorithm's file in `strategies` or `clients`."""
    return import_module(f"corsage.{folder}.{name.replace('-', '_')}")


def strategy_class(name: str) -> type[Strategy]:
    """The strategy of an algorithm."""
    return getattr(module_of(name, "strategies"), ALGORITHMS[name])  # type: ignore[no-any-return]


def client_class(name: str) -> type[Client]:
    """The client of an algorithm."""
    return getattr(module_of(name, "clients"), f"{ALGORITHMS[name]}Client")  # type: ignore[no-any-return]


def algorithm_keys() -> dict[str, type[Keys]]:
    """The keys of each algorithm that has keys of its own."""
    found = {}
    for name, cls in ALGORITHMS.items():
        module = module_of(name, "strategies")
        if hasattr(module, f"{cls}Keys"):
            found[name] = getattr(module, f"{cls}Keys")
    return found


def __getattr__(attribute: str) -> type[Strategy]:
    """`from corsage.strategies import FedRep`, without importing all of them."""
    for name, cls in ALGORITHMS.items():
        if attribute == cls:
            return strategy_class(name)
    raise AttributeError(f"corsage.strategies has no {attribute!r}")
