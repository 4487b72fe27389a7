"""Strategies: what the server combines, one file an algorithm.

`ALGORITHMS` is the registry. A name `foo` stands for the class it names in `strategies/foo.py`, the
class of that name with `Client` behind it in `clients/foo.py`, and, if the algorithm has keys of
its own, the dataclass with `Keys` behind it in the strategy's file.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corsage.app.config import Keys
    from corsage.clients.base import Client
    from corsage.strategies.base import Strategy

ALGORITHMS: dict[str, str] = {
    "fedrep": "FedRep",
    "fedavg": "FedAvg",
    "local": "Local",
}


def strategy_class(name: str) -> type[Strategy]:
    """The strategy of an algorithm."""
    return getattr(import_module(f"corsage.strategies.{name}"), ALGORITHMS[name])  # type: ignore[no-any-return]


def client_class(name: str) -> type[Client]:
    """The client of an algorithm."""
    return getattr(import_module(f"corsage.clients.{name}"), f"{ALGORITHMS[name]}Client")  # type: ignore[no-any-return]


def algorithm_keys() -> dict[str, type[Keys]]:
    """The keys of each algorithm that has keys of its own."""
    found = {}
    for name, cls in ALGORITHMS.items():
        module = import_module(f"corsage.strategies.{name}")
        if hasattr(module, f"{cls}Keys"):
            found[name] = getattr(module, f"{cls}Keys")
    return found


def __getattr__(attribute: str) -> type[Strategy]:
    """`from corsage.strategies import FedRep`, without importing all of them."""
    for name, cls in ALGORITHMS.items():
        if attribute == cls:
            return strategy_class(name)
    raise AttributeError(f"corsage.strategies has no {attribute!r}")
