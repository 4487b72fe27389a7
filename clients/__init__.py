"""Clients: what a user does, one file an algorithm."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from corsage.core.registry import attached, found, source

if TYPE_CHECKING:
    from corsage.clients.base import Client


@cache
def client_class(name: str, at_the_end: bool = False) -> type[Client[Any]]:
    """The client of an algorithm, or of a preset; or of heads at its end."""
    if at_the_end:
        return attached("heads at home").EndHeadsClient  # type: ignore[no-any-return]
    cls: type[Client[Any]] = found(source(name), "clients", "Client")
    return cls
