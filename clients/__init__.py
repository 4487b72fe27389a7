"""Clients: what a user does, one file an algorithm."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from corsage.core.messages.wire import END_HEAD, Task
from corsage.core.registry import attached, found, source

if TYPE_CHECKING:
    from corsage.clients.base import Client


def client_of(task: Task) -> type[Client[Any]]:
    """The client that answers a task: that of the algorithm, or of heads at its end."""
    if END_HEAD in task.options:
        return attached("heads at home").EndHeadsClient  # type: ignore[no-any-return]
    return client_class(task.algorithm)


@cache
def client_class(name: str) -> type[Client[Any]]:
    """The client of an algorithm, or of a preset."""
    cls: type[Client[Any]] = found(source(name), "clients", "Client")
    return cls
