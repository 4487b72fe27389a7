"""Clients: what a user does, one file an algorithm."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from corsage.core.registry import attached, found, source

if TYPE_CHECKING:
    from corsage.clients.base import Client
    from corsage.core.messages.wire import Task


@cache
def client_class(name: str) -> type[Client[Any]]:
    """The client of an algorithm; a preset's is that of what it is a preset of."""
    cls: type[Client[Any]] = found(source(name), "clients", "Client")
    return cls


def client_of(task: Task) -> type[Client[Any]]:
    """The client of a task: the algorithm's, or that of heads at its end."""
    if "end-head" not in task.options:
        return client_class(task.algorithm)
    cls: type[Client[Any]] = attached("heads at home").EndHeadsClient
    return cls
