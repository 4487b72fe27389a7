"""Strategies: what the server combines, one file an algorithm."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from corsage.core.registry import ALGORITHMS, found

if TYPE_CHECKING:
    from corsage.strategies.rounds.base import Strategy


@cache
def strategy_class(name: str) -> type[Strategy[Any, Any]]:
    """The strategy of an algorithm; a preset's is a class of its own name."""
    entry = ALGORITHMS[name]
    if not entry.of:
        cls: type[Strategy[Any, Any]] = found(name, "strategies")
        return cls
    base = strategy_class(entry.of)
    body = {"name": name, "__doc__": base.__doc__, "__module__": base.__module__}
    return type(entry.cls, (base,), body)
