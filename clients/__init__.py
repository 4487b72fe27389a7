"""Clients: what a user does, one file an algorithm."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from corsage.core.registry import found, source

if TYPE_CHECKING:
    from corsage.clients.base import Client


@cache
def client_class(name: str) -> type[Client[Any]]:
    """The client of an algorithm; a preset's is that of what it is a preset of."""
    cls: type[Client[Any]] = found(source(name), "clients", "Client")
    return cls
