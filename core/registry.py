"""The algorithms and the data sets by name: what a newcomer adds a line to.

An algorithm `foo` is the class that it names here in `strategies/foo.py`, the class of that name
with `Client` behind it in `clients/foo.py`, and, if it has keys of its own, the dataclass that the
strategy's file calls by that name with `Keys` behind it. Files of `foo-bar` are called `foo_bar.py`;
those of a family lie in its folder, whose name stands before the colon.

Nothing is imported before it is named.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corsage.clients.base import Client
    from corsage.core.keys import Keys
    from corsage.strategies.rounds.base import Strategy

ALGORITHMS: dict[str, str] = {
    "fedrep": "fedrep:FedRep",
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
    "async-l2gd": "known_clusters:AsyncL2GD",
    "async-al2sgd": "known_clusters:AsyncAL2SGD",
    "mixed-model": "known_clusters:MixedModel",
    "single-cluster": "known_clusters:SingleCluster",
    "exact-cluster": "known_clusters:ExactCluster",
    "exact-global": "known_clusters:ExactGlobal",
    "exact-local": "known_clusters:ExactLocal",
    "convex-clustering": "convex_clustering:ConvexClustering",
    "local-clusters": "convex_clustering:LocalClusters",
}


def class_name(name: str) -> str:
    """The class of an algorithm, without its family."""
    return ALGORITHMS[name].rpartition(":")[2]


def module_of(name: str, floor: str) -> ModuleType:
    """An algorithm's file in `strategies` or `clients`."""
    family = ALGORITHMS[name].rpartition(":")[0]
    folder = f"{floor}.{family}" if family else floor
    if floor == "clients" and name == "fedrep":
        folder = floor
    return import_module(f"corsage.{folder}.{name.replace('-', '_')}")


def strategy_class(name: str) -> type[Strategy]:
    """The strategy of an algorithm."""
    return getattr(module_of(name, "strategies"), class_name(name))  # type: ignore[no-any-return]


def client_class(name: str) -> type[Client]:
    """The client of an algorithm."""
    return getattr(module_of(name, "clients"), f"{class_name(name)}Client")  # type: ignore[no-any-return]


def algorithm_keys() -> dict[str, type[Keys]]:
    """The keys of each algorithm that has keys of its own."""
    found = {}
    for name in ALGORITHMS:
        module = module_of(name, "strategies")
        if hasattr(module, f"{class_name(name)}Keys"):
            found[name] = getattr(module, f"{class_name(name)}Keys")
    return found
